//! Parses lines into sections, and sections into jobs.
//!
//! A global section changes the draft from which later jobs start. A job section starts from a copy
//! of it. The order of the file is therefore significant, as in fio. The meaning of `k` (`kb_base`)
//! applies to its whole section, also as in fio. The lines of an included file replace the
//! `include` line.

use std::rc::Rc;

use super::draft::JobDraft;
use super::options::FioOption;
use super::{ExitScope, Job, JobError, JobFile};

/// Function that returns the text of an included file, or the reason why it is not available.
pub type Inclusion<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Function that returns the value of an environment variable, if set.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// External inputs of a job file: files, variables, properties of the machine. An input that is
/// `None` is rejected where the file uses it.
#[derive(Clone, Copy, Default)]
pub struct Environment<'a> {
    /// Returns the text of an included file.
    pub file: Option<Inclusion<'a>>,
    /// Returns the value of an environment variable.
    pub variable: Option<Variables<'a>>,
    /// Number of processors (`$ncpus`).
    pub processors: Option<u64>,
    /// Memory in MiB (`$mb_memory`).
    pub memory_mib: Option<u64>,
    /// Page size (`$pagesize`).
    pub page_bytes: Option<u64>,
}

/// Maximum nesting of includes. It ends files that include each other.
const INCLUDES_MAX: u32 = 16;

/// Maximum number of job sections in a file, chosen.
const JOBS_MAX: usize = 4096;

/// Parses a whole job file. `environment` provides variables, included files and the properties of
/// the machine.
pub fn parse_job_file(text: &str, environment: &Environment<'_>) -> Result<JobFile, JobError> {
    let mut reader = JobFileReader { environment, sections: Vec::new() };
    // The outermost file is included by no line.
    let (including_line, include_depth) = (None, 0);
    reader.read(text, including_line, include_depth)?;
    let mut global = JobDraft::default();
    let mut jobs: Vec<Job> = Vec::new();
    let mut exits_all = false;
    for section in &reader.sections {
        match &section.name {
            None => section.apply_to(&mut global)?,
            Some(name) => {
                if jobs.len() == JOBS_MAX {
                    let what =
                        format!("is one of more than {JOBS_MAX}; give `numjobs` in their place");
                    return Err(JobError::Conflict { line: section.line, job: name.clone(), what });
                }
                let mut draft = global.clone().for_job(name, section.line);
                section.apply_to(&mut draft)?;
                exits_all |= draft.exits_all;
                jobs.push(draft.finish()?);
            }
        }
    }
    // As in fio, `exitall` in one job applies to all jobs. `exit_what` is an option of each job.
    // Without `exitall` in any job, the end of a job ends no others.
    for job in jobs.iter_mut().filter(|_| !exits_all) {
        job.exit_scope = ExitScope::OnlyItself;
    }
    match jobs.is_empty() {
        true => Err(JobError::NoJobs),
        false => Ok(JobFile { jobs }),
    }
}

/// Option lines of one section, a job or a global one.
struct JobSection {
    /// Name of the job, or `None` for a global section.
    name: Option<String>,
    /// Line number of the section, from 1.
    line: usize,
    /// Option lines in the order of the file.
    options: Vec<OptionLine>,
}

/// One option in its file.
struct OptionLine {
    /// Line number in its own file, from 1.
    line_number: usize,
    /// Name of the option as written.
    option: String,
    /// `None` for a switch, which has no value.
    value: Option<String>,
    /// The `include` line through which the option was read. `None` in the outermost file.
    included_from: Option<Rc<IncludedFrom>>,
}

/// The `include` line through which a file was read.
struct IncludedFrom {
    /// Line number of the `include` line, from 1.
    line: usize,
    /// Name of the included file.
    file: String,
    /// The line that included the file with this line. `None` in the outermost file.
    included_from: Option<Rc<IncludedFrom>>,
}

/// Wraps an error once for each including line, from the innermost to the outermost: the outermost
/// wrapper has the line in the job file itself. `included_from` is `None` for an error in that
/// file.
fn with_include_lines(error: JobError, included_from: Option<&Rc<IncludedFrom>>) -> JobError {
    match included_from {
        None => error,
        Some(included_from) => {
            let (line, file) = (included_from.line, included_from.file.clone());
            let error = JobError::Included { line, file, error: Box::new(error) };
            with_include_lines(error, included_from.included_from.as_ref())
        }
    }
}

impl JobSection {
    /// Sets the options of the section, `kb_base` first: it is the meaning of `k` in all others.
    fn apply_to(&self, draft: &mut JobDraft) -> Result<(), JobError> {
        let sets_kilo = |line: &&OptionLine| line.option == "kb_base";
        let kilo_lines = self.options.iter().filter(sets_kilo);
        for line in kilo_lines.chain(self.options.iter().filter(|line| !sets_kilo(line))) {
            FioOption::set(draft, line.line_number, &line.option, line.value.as_deref())
                .map_err(|error| with_include_lines(error, line.included_from.as_ref()))?;
        }
        Ok(())
    }

    /// Creates the section of a line `[name]`. A name that starts with `global` makes it a global
    /// section.
    fn from_header(content: &str, line: usize) -> Result<JobSection, JobError> {
        let name = content
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .ok_or_else(|| JobError::BadSection { line, text: super::printable(content) })?;
        // fio compares only the first six letters, so a section `[global2]` is global too.
        let is_global = name.starts_with("global");
        let name = (!is_global).then(|| name.to_owned());
        Ok(JobSection { name, line, options: Vec::new() })
    }
}

/// Reads the lines of a file and of its includes.
struct JobFileReader<'a> {
    /// Provides variables, included files and properties of the machine.
    environment: &'a Environment<'a>,
    /// Sections so far, in order.
    sections: Vec<JobSection>,
}

impl JobFileReader<'_> {
    /// Reads the lines of one file, and of the files that it includes. `included_from` is the
    /// `include` line of the file, and `depth` its nesting level, 0 for the outermost file.
    fn read(
        &mut self,
        text: &str,
        included_from: Option<&Rc<IncludedFrom>>,
        depth: u32,
    ) -> Result<(), JobError> {
        // Some editors put a byte order mark before a text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let content = without_comment(line).trim();
            if !content.is_empty() {
                self.read_line(content, index + 1, included_from, depth)?;
            }
        }
        Ok(())
    }

    /// Reads one line, which can be an `include`. `content` is the line without comment, not empty.
    /// `line_number` counts from 1. `included_from` is the `include` line of the line's file, and
    /// `depth` the nesting level of that file.
    fn read_line(
        &mut self,
        content: &str,
        line_number: usize,
        included_from: Option<&Rc<IncludedFrom>>,
        depth: u32,
    ) -> Result<(), JobError> {
        let inclusion =
            content.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t']));
        let Some(name) = inclusion else {
            return self
                .read_option_line(content, line_number, included_from)
                .map_err(|error| with_include_lines(error, included_from));
        };
        let text = self.environment.substitute(name.trim(), line_number).and_then(|name| {
            let text = self.environment.included_text(&name, content, line_number, depth)?;
            Ok((name, text))
        });
        let (file, text) = text.map_err(|error| with_include_lines(error, included_from))?;
        let included_from = Rc::new(IncludedFrom {
            line: line_number,
            file,
            included_from: included_from.cloned(),
        });
        self.read(&text, Some(&included_from), depth + 1)
    }

    /// Adds a section for a line `[name]`, or adds an option to the last section. An option
    /// before the first section is an error. `included_from` is recorded with the option for
    /// errors.
    fn read_option_line(
        &mut self,
        content: &str,
        line_number: usize,
        included_from: Option<&Rc<IncludedFrom>>,
    ) -> Result<(), JobError> {
        if content.starts_with('[') {
            self.sections.push(JobSection::from_header(content, line_number)?);
            return Ok(());
        }
        let (option, value) = split_option(content);
        let option = self.environment.substitute(option, line_number)?;
        let value =
            value.map(|value| self.environment.substitute(value, line_number)).transpose()?;
        let Some(section) = self.sections.last_mut() else {
            return Err(JobError::OutsideSection {
                line: line_number,
                text: super::printable(content),
            });
        };
        section.options.push(OptionLine {
            line_number,
            option,
            value,
            included_from: included_from.cloned(),
        });
        Ok(())
    }
}

impl Environment<'_> {
    /// Returns the text of an included file. `content` is the `include` line and `line` its
    /// number, both for errors. `depth` is the nesting level of the including file. Fails at
    /// the maximum nesting, if this environment has no files, and if the file is not available.
    fn included_text(
        &self,
        name: &str,
        content: &str,
        line: usize,
        depth: u32,
    ) -> Result<String, JobError> {
        let not_found = |advice: &str| JobError::NotFound {
            line,
            text: super::printable(content),
            advice: advice.to_owned(),
        };
        if depth == INCLUDES_MAX {
            return Err(not_found("files include each other without an end; take one of them out"));
        }
        match self.file {
            None => Err(not_found("nothing is included here; copy the lines of that file to here")),
            Some(file) => {
                file(name).map_err(|why| not_found(&format!("{why}; check the file's name")))
            }
        }
    }

    /// Replaces `${NAME}` and the properties of the machine (such as `$ncpus`) in a text. Values of
    /// variables can contain such properties too. A result with arithmetic around such a property
    /// is put in brackets, unless it already contains one, because this parser evaluates arithmetic
    /// only in brackets. An unclosed `${` stays as it is. `line` is the line number for errors.
    ///
    /// # Errors
    /// The environment has no variable of this name, variables are not replaced here, or a property
    /// of the machine is unknown.
    fn substitute(&self, text: &str, line: usize) -> Result<String, JobError> {
        let not_found = |name: &str, advice: String| {
            Err(JobError::NotFound { line, text: super::printable(name), advice })
        };
        let mut result = String::new();
        let mut rest = text;
        while let Some((before, reference)) = rest.split_once("${") {
            let Some((name, after)) = reference.split_once('}') else { break };
            result.push_str(before);
            match self.variable.map(|variable| variable(name)) {
                Some(Some(value)) => result.push_str(&value),
                Some(None) => {
                    let name = super::printable(name);
                    let advice =
                        format!("the environment has no variable of this name; set {name}=VALUE");
                    return not_found(&format!("${{{name}}}"), advice);
                }
                None => {
                    let advice = "variables are not filled in here; write the value itself";
                    return not_found(
                        &format!("${{{}}}", super::printable(name)),
                        advice.to_owned(),
                    );
                }
            }
            rest = after;
        }
        result.push_str(rest);
        let properties = [
            ("$pagesize", self.page_bytes),
            ("$mb_memory", self.memory_mib),
            ("$ncpus", self.processors),
        ];
        let mut is_changed = false;
        for (word, value) in properties {
            if result.contains(word) {
                let Some(value) = value else {
                    return not_found(
                        word,
                        "this is not known here; write the value itself".to_owned(),
                    );
                };
                result = result.replace(word, &value.to_string());
                is_changed = true;
            }
        }
        // fio also evaluates arithmetic around such a word without brackets.
        let is_arithmetic =
            is_changed && result.contains(['+', '-', '*', '/']) && !result.contains('(');
        Ok(if is_arithmetic { format!("({result})") } else { result })
    }
}

/// Returns the line up to the first `;` or `#`. fio does not support quotes around them.
fn without_comment(line: &str) -> &str {
    line.find([';', '#']).map_or(line, |start| &line[..start])
}

/// Splits `option = value`. The value is absent for a switch.
fn split_option(content: &str) -> (&str, Option<&str>) {
    match content.split_once('=') {
        None => (content, None),
        Some((option, value)) => (option.trim_end(), Some(value.trim_start())),
    }
}
