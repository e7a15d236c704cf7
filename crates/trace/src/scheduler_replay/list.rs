//! Parser of the replayed list: one event per line, `key=value` words.
//!
//! A *word* is a pair `key=value`. Each function that takes a word removes it, so that a rest is an
//! unknown word. A missing or malformed word is an error, returned as its text.

use std::collections::BTreeMap;
use std::str::FromStr;

use readpath_core::request::{Class, Need, Op, Priority, ProcessId, Request, RequestId};
use readpath_core::unit::Time;

/// Upper bound (exclusive) of the numbers of requests and processes. Chosen: it bounds the memory
/// of tables that are indexed by them.
const NUMBERS_END: u32 = 1 << 24;

/// Default level of a request's priority, as in the kernel. 0 is the highest of the eight.
const LEVEL_DEFAULT: u8 = 4;

/// Event of a line. Identifiers are the numbers in the list.
pub(super) enum ListEvent {
    /// The request arrives at the scheduler.
    Arrive(RequestId, Request),
    /// The list's scheduler sends the request to the device.
    Dispatch(RequestId),
    /// The device completes the request.
    Complete(RequestId),
    /// The process ends, and sends no more requests.
    End(ProcessId),
    /// Time passes, without another event.
    Wait,
}

/// The words of one line: `key=value`, each taken once.
struct LineWords<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> LineWords<'a> {
    /// Splits a line into words.
    fn split(text: &'a str) -> Result<LineWords<'a>, String> {
        let mut words = BTreeMap::new();
        for word in text.split_whitespace() {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("`{word}`: expected key=value"))?;
            if words.insert(key, value).is_some() {
                return Err(format!("`{key}` comes twice"));
            }
        }
        Ok(LineWords(words))
    }

    /// Takes the value of `key`, or returns an error without it.
    fn take_text(&mut self, key: &str) -> Result<&'a str, String> {
        self.0.remove(key).ok_or_else(|| format!("`{key}=` is missing"))
    }

    /// Takes the value of `key` as a number.
    fn take_number<N: FromStr>(&mut self, key: &str) -> Result<N, String> {
        let text = self.take_text(key)?;
        text.parse().map_err(|_| format!("`{key}={text}`: expected a whole number"))
    }

    /// Takes the number of a request or a process. Policies keep tables indexed by it, so it is
    /// below [`NUMBERS_END`].
    fn take_identifier(&mut self, key: &str) -> Result<u32, String> {
        let number: u64 = self.take_number(key)?;
        u32::try_from(number).ok().filter(|number| *number < NUMBERS_END).ok_or_else(|| {
            format!("`{key}={number}`: expected a number below {NUMBERS_END}; count from 1")
        })
    }

    /// Takes the value of `key` among `choices`; `default` if it is absent.
    fn take_choice<T: Copy>(
        &mut self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, String> {
        let Some(text) = self.0.remove(key) else { return Ok(default) };
        choices.iter().find(|(name, _)| *name == text).map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            format!("`{key}={text}`: expected one of {}", names.join(", "))
        })
    }

    /// Returns an error if a word was not taken: it has no meaning for the event.
    fn check_empty(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("`{key}=` has no meaning for this event")),
        }
    }
}

/// Parses one line without its comment. Returns the time and the event, or the text of an error.
pub(super) fn parse(text: &str) -> Result<(Time, ListEvent), String> {
    let mut words = LineWords::split(text)?;
    let at = parse_milliseconds(words.take_text("at_ms")?)?;
    let event = match words.take_text("event")? {
        "arrive" => {
            let id = RequestId(words.take_identifier("request")?);
            ListEvent::Arrive(id, parse_request(&mut words)?)
        }
        "dispatch" => ListEvent::Dispatch(RequestId(words.take_identifier("request")?)),
        "complete" => ListEvent::Complete(RequestId(words.take_identifier("request")?)),
        "end" => ListEvent::End(ProcessId(words.take_identifier("process")?)),
        "wait" => ListEvent::Wait,
        other => {
            return Err(format!(
                "`event={other}`: expected one of arrive, dispatch, complete, end, wait"
            ));
        }
    };
    words.check_empty()?;
    Ok((at, event))
}

/// Takes the words of a request that arrives, with their defaults.
fn parse_request(words: &mut LineWords<'_>) -> Result<Request, String> {
    let op = match words.take_text("op")? {
        "read" => Op::Read,
        "write" => Op::Write,
        other => return Err(format!("`op={other}`: expected read or write")),
    };
    let classes = [("rt", Class::RealTime), ("be", Class::BestEffort), ("idle", Class::Idle)];
    let class = words.take_choice("class", Class::BestEffort, &classes)?;
    let levels = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let levels: Vec<(&str, u8)> = levels.into_iter().zip(0..).collect();
    // A read waits for its data unless the list says otherwise; a write does not.
    let is_sync = words.take_choice("sync", op == Op::Read, &[("yes", true), ("no", false)])?;
    let request = Request {
        op,
        start: words.take_number("start")?,
        sectors: words.take_number("sectors")?,
        process: ProcessId(words.take_identifier("process")?),
        priority: Priority { class, level: words.take_choice("level", LEVEL_DEFAULT, &levels)? },
        is_sync,
        // A process waits for its synchronous requests.
        need: Need::of(is_sync),
    };
    if request.sectors == 0 {
        return Err("`sectors=0`: expected at least 1".to_string());
    }
    if request.start.checked_add(request.sectors.into()).is_none() {
        return Err("`start=`: the request ends beyond the last sector there can be".to_string());
    }
    Ok(request)
}

/// Parses milliseconds with at most six digits after the point. Returns a time, or the text of an
/// error.
fn parse_milliseconds(text: &str) -> Result<Time, String> {
    let expected = || format!("`at_ms={text}`: expected milliseconds, as 12 or 12.345678");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > 6 {
        return Err(expected());
    }
    let whole: u64 = whole.parse().map_err(|_| expected())?;
    let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| expected())?;
    // Below 2^63 ns, so that two times can be added.
    whole
        .checked_mul(1_000_000)
        .and_then(|ns| ns.checked_add(fraction))
        .filter(|&ns| ns <= i64::MAX as u64)
        .map(Time)
        .ok_or_else(expected)
}
