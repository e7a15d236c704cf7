//! Lines to sections to jobs.
//!
//! A global section changes the draft that later jobs start from; a job section
//! starts from a copy of it. So the order of the file decides, as in fio.

use super::options::Draft;
use super::{JobError, JobFile};

/// Reads a whole job file.
pub fn job_file(text: &str) -> Result<JobFile, JobError> {
    let mut global = Draft::default();
    let mut drafts: Vec<Draft> = Vec::new();
    let mut section = Section::None;
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        let content = without_comment(raw).trim();
        if content.is_empty() {
            continue;
        }
        if content.starts_with('[') {
            section = Section::of(content, line)?;
            if let Section::Job(name) = &section {
                drafts.push(global.clone().for_job(name, line));
            }
            continue;
        }
        refuse_inclusion(content, line)?;
        let (option, value) = option_and_value(content);
        match section {
            Section::None => {
                return Err(JobError::OutsideSection { line, text: content.to_owned() });
            }
            Section::Global => global.set(line, option, value)?,
            Section::Job(_) => drafts
                .last_mut()
                .expect("a draft was pushed when its section began")
                .set(line, option, value)?,
        }
    }
    if drafts.is_empty() {
        return Err(JobError::NoJobs);
    }
    let jobs = drafts.into_iter().map(Draft::finish).collect::<Result<_, _>>()?;
    Ok(JobFile { jobs })
}

/// Where the lines belong that come now.
enum Section {
    None,
    Global,
    Job(String),
}

impl Section {
    /// The section that a line `[name]` begins.
    fn of(content: &str, line: usize) -> Result<Section, JobError> {
        let name = content
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .map(str::trim)
            .filter(|name| !name.is_empty());
        match name {
            None => Err(JobError::BadSection { line, text: content.to_owned() }),
            // fio compares the first six letters only: `[global2]` is global too.
            Some(name) if name.starts_with("global") => Ok(Section::Global),
            Some(name) => Ok(Section::Job(name.to_owned())),
        }
    }
}

/// The line up to the first `;` or `#`: fio knows no quotes around them.
fn without_comment(line: &str) -> &str {
    line.find([';', '#']).map_or(line, |start| &line[..start])
}

/// Refuses what would bring text in from elsewhere: a file, the environment, the machine.
fn refuse_inclusion(content: &str, line: usize) -> Result<(), JobError> {
    let refused = |advice| Err(JobError::NotSupported { line, text: content.to_owned(), advice });
    if content.split_whitespace().next() == Some("include") {
        return refused("copy the lines of that file to here");
    }
    let keywords = ["${", "$pagesize", "$mb_memory", "$ncpus"];
    if keywords.iter().any(|keyword| content.contains(keyword)) {
        return refused("write the value itself, so that the job is the same on every machine");
    }
    Ok(())
}

/// Splits `option = value`; the value is absent for a switch.
fn option_and_value(content: &str) -> (&str, Option<&str>) {
    match content.split_once('=') {
        None => (content, None),
        Some((option, value)) => (option.trim_end(), Some(value.trim_start())),
    }
}
