//! Kernels that lack an event, or a field of one.

use std::io;

use super::*;

/// Events with all fields that are used, but for one event or for one field of one event.
struct FakeEvents {
    lacking_event: &'static str,
    /// Lacking field. `None`: the event itself is lacking.
    lacking_field: Option<&'static str>,
}

/// Names of all fields that the decoder uses.
const FIELDS: [&str; 30] = [
    "s_dev",
    "i_ino",
    "index",
    "last_index",
    "order",
    "prev_pid",
    "prev_comm",
    "prev_state",
    "next_pid",
    "next_comm",
    "pid",
    "comm",
    "clone_flags",
    "address",
    "error_code",
    "dev",
    "sector",
    "nr_sector",
    "bytes",
    "rwbs",
    "req",
    "res",
    "op_str",
    "size",
    "caller",
    "ret",
    "fd",
    "buf",
    "count",
    "pos",
];

impl EventFiles for FakeEvents {
    fn read(&self, file: &str) -> Result<String, TracefsError> {
        let is_lacking_event = file == format!("events/{}/format", self.lacking_event);
        if is_lacking_event && self.lacking_field.is_none() {
            return Err(TracefsError::Unavailable {
                action: "read",
                path: file.into(),
                source: io::ErrorKind::NotFound.into(),
            });
        }
        let fields =
            FIELDS.iter().filter(|field| !is_lacking_event || self.lacking_field != Some(**field));
        let line = |field: &&str| format!("\tfield:unsigned long {field};\toffset:8;\tsize:8;\n");
        // Each event has a number of its own: a hash of its file's name.
        let id = file.bytes().fold(7u16, |id, byte| id.wrapping_mul(31) ^ u16::from(byte));
        Ok(format!("name: x\nID: {id}\nformat:\n{}", fields.map(line).collect::<String>()))
    }

    fn write(&self, _file: &str, _text: &str) -> Result<(), TracefsError> {
        Ok(())
    }
}

/// Returns the gaps of both decoders on a kernel that lacks an event or a field of that event.
fn gaps_without(
    lacking_event: &'static str,
    lacking_field: Option<&'static str>,
) -> Result<Vec<String>, TracefsError> {
    let events = FakeEvents { lacking_event, lacking_field };
    Ok([Decoder::of_tasks(&events)?.gaps(), Decoder::of_system(&events)?.gaps()].concat())
}

#[test]
fn kernel_with_all_events_has_no_gap() {
    let unknown_event = "none";
    assert_eq!(gaps_without(unknown_event, None).unwrap(), [""; 0]);
}

#[test]
fn each_lacking_optional_event_is_named_with_its_consequence() {
    let optional = OPTIONAL_TASK_EVENTS.iter().chain(&OPTIONAL_GLOBAL_EVENTS).chain([&STACK]);
    for event in optional {
        let gaps = gaps_without(event, None).unwrap();
        // Either of two events about submissions is enough, and an exec or a fault in the
        // kernel is recorded by other events too.
        let has_replacement = ["io_uring_submit_req", "io_uring_submit_sqe", "page_fault_kernel"]
            .iter()
            .any(|replaced| event.ends_with(replaced))
            || event.ends_with("sched_process_exec");
        match has_replacement {
            true => assert_eq!(gaps, [""; 0], "{event}"),
            false => {
                assert!(gaps.len() == 1 && gaps[0].starts_with(event), "{event}: {gaps:?}")
            }
        }
    }
    for (name, _) in CALLS {
        let event: &'static str = Box::leak(format!("syscalls/sys_enter_{name}").into_boxed_str());
        let gaps = gaps_without(event, None).unwrap();
        match REPLACED_CALLS.contains(&name) {
            true => assert_eq!(gaps, [""; 0], "{name}"),
            false => assert_eq!(gaps, [format!("{event}: calls of {name} are not seen")]),
        }
    }
}

#[test]
fn changed_field_counts_as_a_lacking_event() {
    let gaps = gaps_without("sched/sched_waking", Some("pid")).unwrap();
    assert!(gaps.len() == 1 && gaps[0].starts_with("sched/sched_waking: "), "{gaps:?}");
}

#[test]
fn lacking_or_changed_required_event_is_an_error_that_names_it() {
    for event in REQUIRED_TASK_EVENTS.iter().chain(&REQUIRED_GLOBAL_EVENTS) {
        let error = gaps_without(event, None).unwrap_err().to_string();
        assert!(error.contains(event), "{error}");
    }
    let error = gaps_without("sched/sched_switch", Some("next_pid")).unwrap_err().to_string();
    assert!(error.contains("sched/sched_switch without"), "{error}");
}

/// A touch of page 16 by a kernel whose event has no last page is of that page only.
#[test]
fn event_without_a_last_page_is_of_its_first_page() {
    for lacking_event in ["filemap/mm_filemap_get_pages", "filemap/mm_filemap_map_pages"] {
        let events = FakeEvents { lacking_event, lacking_field: Some("last_index") };
        let decoder = Decoder::of_tasks_without_stacks(&events).unwrap();
        let format = events.read(&format!("events/{lacking_event}/format")).unwrap();
        let id = EventLayout::parse(&format).unwrap().id;
        // The task 7, and 16 in each field.
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&id.to_le_bytes());
        (bytes[4], bytes[8]) = (7, 16);
        let inode = Inode { device: 16, number: 16 };
        let expected = match lacking_event {
            "filemap/mm_filemap_get_pages" => EventData::CacheRead { inode, first: 16, end: 17 },
            _ => EventData::MapPages { inode, first: 16, end: 17 },
        };
        assert_eq!(decoder.decode(0, &bytes).unwrap().data, expected);
    }
}
