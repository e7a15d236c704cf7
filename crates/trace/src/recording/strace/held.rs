//! Lines that wait until the text shows which task an unfinished call begins.
//!
//! A child often runs before the `clone` or `vfork` that began it returns, and only the second line
//! of that call has its number. The first line and all lines after it are held until then. The
//! memory has the text of one such call: for `vfork`, up to the `execve` of the child.

use std::collections::{BTreeMap, VecDeque};

use super::syntax::{Call, begins_task, parse_head, split_resumed, unfinished_text};

/// Task that an unfinished call begins, as far as the text shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTask {
    /// The call begins no task, fails, or its caller ends during it.
    Absent,
    /// Number of the task, from the second line of the call.
    Shown(u32),
    /// The second line of the call has not been read. At the end of the text: it is missing.
    CutOff,
}

/// A line of the text.
#[derive(Debug)]
pub struct Line {
    /// Number in the text, from 1.
    pub number: u64,
    /// The line, with its end.
    pub text: String,
    /// Task that an unfinished call in this line begins.
    pub new_task: NewTask,
}

/// Lines in their order, held at the first unfinished call whose new task is not known yet.
#[derive(Debug, Default)]
pub struct HeldLines {
    /// The lines, with ascending numbers.
    lines: VecDeque<Line>,
    /// Number of the line with such a call, by its task.
    open_calls: BTreeMap<u32, u64>,
    /// True after the last line of the text.
    has_ended: bool,
}

impl HeldLines {
    /// Adds the next line of the text. It may be the second line of a held call.
    pub fn add(&mut self, number: u64, text: &str) {
        let mut new_task = NewTask::Absent;
        if let Some((task, _, rest)) = parse_head(text) {
            if let Some((_, tail)) = split_resumed(rest) {
                self.settle(task, Some(tail));
            } else if rest.starts_with("+++") {
                self.settle(task, None);
            } else if unfinished_text(rest).is_some_and(|text| begins_task(text_name(text))) {
                self.settle(task, None);
                self.open_calls.insert(task, number);
                new_task = NewTask::CutOff;
            }
        }
        self.lines.push_back(Line { number, text: text.to_owned(), new_task });
    }

    /// Releases all lines. Calls whose second line is missing are cut off.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Removes and returns the next line. `None` without a line, or as long as it has to wait.
    pub fn take(&mut self) -> Option<Line> {
        let first = self.lines.front()?;
        if first.new_task == NewTask::CutOff && !self.has_ended {
            return None;
        }
        self.lines.pop_front()
    }

    /// Ends the held call of a task: its first line need not wait any longer. `tail` is the rest of
    /// the call in its second line, `None` if the task ends without one. No effect if the task has
    /// no held call.
    fn settle(&mut self, task: u32, tail: Option<&str>) {
        let Some(number) = self.open_calls.remove(&task) else { return };
        let Ok(index) = self.lines.binary_search_by_key(&number, |line| line.number) else {
            return;
        };
        let first = &mut self.lines[index];
        let result = tail.and_then(|tail| {
            let (_, _, rest) = parse_head(&first.text)?;
            let text = format!("{}{tail}", unfinished_text(rest)?);
            u32::try_from(Call::parse(&text)?.success_value()?).ok()
        });
        // A result of 0 is the child's own return.
        first.new_task = match result {
            None | Some(0) => NewTask::Absent,
            Some(task) => NewTask::Shown(task),
        };
    }
}

/// Returns the name of the call with this text.
fn text_name(text: &str) -> &str {
    text.split('(').next().unwrap_or_default()
}
