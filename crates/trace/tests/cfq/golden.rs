//! Golden trajectories: every decision of the policy on a list of events. Each number was worked by
//! hand from the description of the policy.

use super::rig::decided;

/// A sequential process (1) and one that seeks (2) on a disk.
const TWO_PROCESSES: &str = "
at_ms=0    event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=0    event=arrive request=2 process=2 op=read start=1000000 sectors=8
at_ms=8.5  event=complete request=1
at_ms=9.2  event=arrive request=3 process=1 op=read start=8 sectors=8
at_ms=10.2 event=complete request=3
at_ms=26   event=complete request=2
at_ms=26.5 event=arrive request=4 process=2 op=read start=3000000 sectors=8
at_ms=34.5 event=complete request=4
at_ms=35   event=arrive request=5 process=2 op=read start=1000000 sectors=8
at_ms=43   event=complete request=5
at_ms=43   event=arrive request=6 process=2 op=read start=3000000 sectors=8
at_ms=51   event=complete request=6
at_ms=51   event=arrive request=7 process=2 op=read start=1000000 sectors=8
at_ms=59   event=complete request=7
at_ms=59   event=arrive request=8 process=2 op=read start=3000000 sectors=8
at_ms=59   event=arrive request=9 process=1 op=read start=16 sectors=8
at_ms=67   event=complete request=8
at_ms=68   event=complete request=9
at_ms=68   event=arrive request=10 process=2 op=read start=1000000 sectors=8
at_ms=68   event=arrive request=11 process=1 op=read start=24 sectors=8
at_ms=69   event=complete request=11
at_ms=80   event=wait
";

/// - At 0 the first queue is alone: share 300 × 1/1. It counts no queue, not even itself, so its
///   key is 0 + (0 − 1) × (180 − 100) = −80. The second one's: 0 + (1 − 1) × 80.
/// - 8.5: slice 100 from jiffy 8; the average rises to (3×2 + 0 + 2)/4 = 2; 2 × 100 ≤ 300, so the
///   slice is whole. Idle until 8 + 8.
/// - 18: idled from jiffy 10 for 8 without a request; 108 − 18 = 90 of the slice were left.
/// - 26.5: a page for the only busy queue, so its timer continues and fires at 34, before the page
///   is served: of the slice, 26 + 100, 92 are left. The next slice begins with its next request,
///   key 35 + (0 − 1) × 80 and share 300 × 1/2; the same happens at 43.
/// - 59: the sixth request of process 2 is its fifth far one, 5 > 4: seeky, so its window shuts,
///   but its timer continues until 67: 159 − 67 = 92. Then two are in the device. Process 1's key:
///   59 + (1 − 1) × 80.
/// - 68: think times of process 1: 0, 1 and 49, cut at 16, weigh 0, 32, 540 over 84: (540 + 128)/84
///   = 7; then 0: (472 + 128)/105 = 5.
/// - 77: its next request comes too late, after 8 of 168 − 77 = 91. The seeky queue came at 68 with
///   key 68 + (1 − 1) × 80, to the other kind of tree, whose share is 300 × 1/2.
const TWO_PROCESSES_DECIDED: &str = "
at_ms=0.000000 event=tree class=be kind=sync why=tree_empty queues=1 busy=1 average=0 until_ms=300
at_ms=0.000000 event=slice_begin queue=0 process=1 class=be level=4 kind=sync why=first_of_tree key_ms=-80 queued=1
at_ms=0.000000 event=dispatch request=1 queue=0 process=1 start=0 sectors=8 why=next_by_sector distance=0 in_device=1 limit=4
at_ms=8.500000 event=slice_set queue=0 slice_ms=100 end_ms=108 average=2
at_ms=8.500000 event=idle_start queue=0 until_ms=16 why=idle_window think_ms=0
at_ms=9.200000 event=idle_stop queue=0 why=arrival
at_ms=9.200000 event=dispatch request=3 queue=0 process=1 start=8 sectors=8 why=next_by_sector distance=0 in_device=1 limit=4
at_ms=10.200000 event=idle_start queue=0 until_ms=18 why=idle_window think_ms=0
at_ms=18.000000 event=idle_stop queue=0 why=in_vain
at_ms=18.000000 event=slice_end queue=0 why=idled_in_vain left_ms=90 dispatched=2
at_ms=18.000000 event=slice_begin queue=1 process=2 class=be level=4 kind=sync why=first_of_tree key_ms=0 queued=1
at_ms=18.000000 event=dispatch request=2 queue=1 process=2 start=1000000 sectors=8 why=next_by_sector distance=999984 in_device=1 limit=4
at_ms=26.000000 event=slice_set queue=1 slice_ms=100 end_ms=126 average=2
at_ms=26.000000 event=idle_start queue=1 until_ms=34 why=idle_window think_ms=0
at_ms=26.500000 event=dispatch request=4 queue=1 process=2 start=3000000 sectors=8 why=next_by_sector distance=1999992 in_device=1 limit=4
at_ms=34.000000 event=idle_stop queue=1 why=in_vain
at_ms=34.000000 event=slice_end queue=1 why=idled_in_vain left_ms=92 dispatched=2
at_ms=35.000000 event=tree class=be kind=sync why=share_used queues=1 busy=1 average=2 until_ms=185
at_ms=35.000000 event=slice_begin queue=1 process=2 class=be level=4 kind=sync why=first_of_tree key_ms=-45 queued=1
at_ms=35.000000 event=dispatch request=5 queue=1 process=2 start=1000000 sectors=8 why=next_by_sector distance=2000008 in_device=1 limit=4
at_ms=43.000000 event=slice_set queue=1 slice_ms=100 end_ms=143 average=2
at_ms=43.000000 event=idle_start queue=1 until_ms=51 why=idle_window think_ms=1
at_ms=43.000000 event=dispatch request=6 queue=1 process=2 start=3000000 sectors=8 why=next_by_sector distance=1999992 in_device=1 limit=4
at_ms=51.000000 event=idle_stop queue=1 why=in_vain
at_ms=51.000000 event=slice_end queue=1 why=idled_in_vain left_ms=92 dispatched=2
at_ms=51.000000 event=tree class=be kind=sync why=share_used queues=1 busy=1 average=2 until_ms=201
at_ms=51.000000 event=slice_begin queue=1 process=2 class=be level=4 kind=sync why=first_of_tree key_ms=-29 queued=1
at_ms=51.000000 event=dispatch request=7 queue=1 process=2 start=1000000 sectors=8 why=next_by_sector distance=2000008 in_device=1 limit=4
at_ms=59.000000 event=slice_set queue=1 slice_ms=100 end_ms=159 average=2
at_ms=59.000000 event=idle_start queue=1 until_ms=67 why=idle_window think_ms=1
at_ms=59.000000 event=window queue=1 state=shut why=seeky seek=5 think_ms=1 queued=1
at_ms=59.000000 event=dispatch request=8 queue=1 process=2 start=3000000 sectors=8 why=next_by_sector distance=1999992 in_device=1 limit=4
at_ms=67.000000 event=idle_stop queue=1 why=in_vain
at_ms=67.000000 event=slice_end queue=1 why=idled_in_vain left_ms=92 dispatched=2
at_ms=67.000000 event=slice_begin queue=0 process=1 class=be level=4 kind=sync why=first_of_tree key_ms=59 queued=1
at_ms=67.000000 event=dispatch request=9 queue=0 process=1 start=16 sectors=8 why=next_by_sector distance=2999992 in_device=2 limit=4
at_ms=68.000000 event=slice_set queue=0 slice_ms=100 end_ms=168 average=2
at_ms=68.000000 event=idle_start queue=0 until_ms=76 why=idle_window think_ms=7
at_ms=68.000000 event=idle_stop queue=0 why=arrival
at_ms=68.000000 event=dispatch request=11 queue=0 process=1 start=24 sectors=8 why=next_by_sector distance=0 in_device=1 limit=4
at_ms=69.000000 event=idle_start queue=0 until_ms=77 why=idle_window think_ms=5
at_ms=77.000000 event=idle_stop queue=0 why=in_vain
at_ms=77.000000 event=slice_end queue=0 why=idled_in_vain left_ms=91 dispatched=2
at_ms=77.000000 event=tree class=be kind=sync_noidle why=tree_empty queues=1 busy=1 average=2 until_ms=227
at_ms=77.000000 event=slice_begin queue=1 process=2 class=be level=4 kind=sync_noidle why=first_of_tree key_ms=68 queued=1
at_ms=77.000000 event=dispatch request=10 queue=1 process=2 start=1000000 sectors=8 why=next_by_sector distance=999968 in_device=1 limit=4
";

#[track_caller]
pub fn assert_decides(spec: &str, events: &str, expected: &str) {
    let decided = decided(spec, 32, events);
    let expected: Vec<&str> = expected.trim().lines().collect();
    for (number, (decided, expected)) in decided.iter().zip(&expected).enumerate() {
        assert_eq!(decided, expected, "decision {}", number + 1);
    }
    assert_eq!(decided.len(), expected.len(), "{}", decided.join("\n"));
}

#[test]
fn golden_decisions_for_a_sequential_and_a_seeky_process() {
    assert_decides("cfq", TWO_PROCESSES, TWO_PROCESSES_DECIDED);
}

/// An asynchronous write: a read ends its slice, and waits until the write has left the device.
/// Afterwards the disk is idled for the reader.
#[test]
fn read_preempts_an_asynchronous_write() {
    assert_decides(
        "cfq",
        "
at_ms=0  event=arrive request=1 process=1 op=write start=0 sectors=8
at_ms=1  event=arrive request=2 process=1 op=write start=5000000 sectors=8
at_ms=2  event=arrive request=3 process=2 op=read start=9000000 sectors=8
at_ms=8  event=complete request=1
at_ms=16 event=complete request=2
at_ms=24 event=complete request=3
at_ms=32 event=wait
",
        // The async queue alone: share 300 × 1/1 × 40/100 = 120. A second has passed without a late
        // read: depth (0 + 1000)/100 = 10, above 4. Its key: 0 + (0 − 1) × (180 − 40). The
        // reader's, the first of its tree: 2 + (1 − 1) × 80, and 1000 before that. Its share: 300 ×
        // 1/1, because the other queue is empty. After 8 jiffies the queue's slice, 24 + 100, has
        // 92 left.
        "
at_ms=0.000000 event=tree class=be kind=async why=tree_empty queues=1 busy=1 average=0 until_ms=120
at_ms=0.000000 event=slice_begin queue=0 process=- class=be level=4 kind=async why=first_of_tree key_ms=-140 queued=1
at_ms=0.000000 event=dispatch request=1 queue=0 process=1 start=0 sectors=8 why=next_by_sector distance=0 in_device=1 limit=4
at_ms=1.000000 event=dispatch request=2 queue=0 process=1 start=5000000 sectors=8 why=next_by_sector distance=4999992 in_device=2 limit=4
at_ms=2.000000 event=preempt queue=1 active=0 why=sync_before_async distance=3999992
at_ms=2.000000 event=slice_end queue=0 why=preempted left_ms=- dispatched=2
at_ms=2.000000 event=tree class=be kind=sync why=tree_empty queues=1 busy=1 average=0 until_ms=302
at_ms=2.000000 event=slice_begin queue=1 process=2 class=be level=4 kind=sync why=first_of_tree key_ms=-998 queued=1
at_ms=2.000000 event=hold queue=1 why=async_in_device in_device=2 limit=0
at_ms=8.000000 event=hold queue=1 why=async_in_device in_device=1 limit=0
at_ms=16.000000 event=dispatch request=3 queue=1 process=2 start=9000000 sectors=8 why=next_by_sector distance=3999992 in_device=1 limit=4
at_ms=24.000000 event=slice_set queue=1 slice_ms=100 end_ms=124 average=1
at_ms=24.000000 event=idle_start queue=1 until_ms=32 why=idle_window think_ms=0
at_ms=32.000000 event=idle_stop queue=1 why=in_vain
at_ms=32.000000 event=slice_end queue=1 why=idled_in_vain left_ms=92 dispatched=1
",
    );
}
