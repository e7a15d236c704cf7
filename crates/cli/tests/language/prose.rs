//! Sentences of comments and of documents.

use std::path::Path;

/// A sentence of a comment or a document.
pub struct Sentence {
    /// First line of the paragraph that holds it, from 1.
    pub line: usize,
    /// Text, with code replaced by the word CODE.
    pub text: String,
    /// Words in lower case, without code.
    pub words: Vec<String>,
}

impl Sentence {
    /// Number of words that are one of these.
    pub fn count(&self, words: &[&str]) -> usize {
        self.words.iter().filter(|word| words.contains(&word.as_str())).count()
    }
}

/// Mark at the start of a comment line, by the file's ending. None: all text is prose.
fn marks(path: &Path) -> Option<&'static [&'static str]> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("rs") => Some(&["///", "//!", "//"]),
        Some("py" | "toml" | "sh") => Some(&["#"]),
        _ => None,
    }
}

/// Sentences of at least two words in the comments of a source file, or in a document.
pub fn sentences(path: &Path) -> Vec<Sentence> {
    sentences_of(path, &std::fs::read_to_string(path).unwrap())
}

/// Sentences of `text`, which is the content of `path`.
pub fn sentences_of(path: &Path, text: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    for (line, paragraph) in paragraphs(path, text) {
        for sentence in split(&plain(&paragraph)) {
            let words = words_of(&sentence);
            if words.len() > 1 {
                found.push(Sentence { line, text: sentence, words });
            }
        }
    }
    found
}

/// First line and text of each paragraph.
fn paragraphs(path: &Path, text: &str) -> Vec<(usize, String)> {
    let marks = marks(path);
    let mut found = Vec::new();
    let (mut start, mut current, mut is_code) = (0, String::new(), false);
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let mut body = match marks {
            None => trimmed,
            Some(marks) => match marks.iter().find_map(|mark| trimmed.strip_prefix(mark)) {
                Some(body) if !trimmed.starts_with("#!") => body.trim(),
                _ => "",
            },
        };
        if body.starts_with("```") {
            is_code = !is_code;
            body = "";
        }
        let is_markup = marks.is_none() && body.starts_with('<');
        if is_code || is_markup || body.starts_with(['|', '#']) {
            body = "";
        }
        let item = item(body);
        if (item.is_some() || body.is_empty()) && !current.is_empty() {
            found.push((start, std::mem::take(&mut current)));
        }
        let body = item.unwrap_or(body);
        if !body.is_empty() {
            if current.is_empty() {
                start = number + 1;
            } else {
                current.push(' ');
            }
            current.push_str(body);
        }
    }
    if !current.is_empty() {
        found.push((start, current));
    }
    found
}

/// Text of a list's item, behind its mark.
fn item(body: &str) -> Option<&str> {
    if let Some(rest) = body.strip_prefix("- ").or_else(|| body.strip_prefix("* ")) {
        return Some(rest);
    }
    let digits = body.chars().take_while(char::is_ascii_digit).count();
    if digits == 0 { None } else { body[digits..].strip_prefix(". ") }
}

/// The paragraph with links reduced to their texts and code to a word.
fn plain(paragraph: &str) -> String {
    let mut text = String::new();
    for (at, part) in paragraph.split('`').enumerate() {
        text.push_str(if at % 2 == 0 { part } else { "CODE" });
    }
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("](") {
        plain.push_str(&rest[..at]);
        rest = rest[at..].find(')').map_or("", |end| &rest[at + end + 1..]);
    }
    plain.push_str(rest);
    plain.replace(['[', ']', '*'], "")
}

/// Sentences: they end with a full stop, a mark or a colon before a capital letter.
fn split(paragraph: &str) -> Vec<String> {
    let letters: Vec<char> = paragraph.chars().collect();
    let mut found = Vec::new();
    let mut current = String::new();
    for (at, &letter) in letters.iter().enumerate() {
        current.push(letter);
        let next = letters[at + 1..].iter().find(|it| !it.is_whitespace());
        let is_end = ['.', '!', '?', ':'].contains(&letter)
            && letters.get(at + 1).is_some_and(|it| it.is_whitespace())
            && next.is_some_and(|&it| it.is_ascii_uppercase() || it == '"' || it == '(');
        if is_end {
            found.push(std::mem::take(&mut current).trim().to_owned());
        }
    }
    found.push(current.trim().to_owned());
    found
}

/// Words of a sentence, in lower case.
fn words_of(sentence: &str) -> Vec<String> {
    sentence
        .split(|letter: char| !(letter.is_ascii_alphabetic() || ['\'', '’', '-'].contains(&letter)))
        .map(|word| word.trim_matches(|letter: char| !letter.is_ascii_alphabetic()).to_lowercase())
        .filter(|word| !word.is_empty() && word != "code")
        .collect()
}

/// Lines of comments or of a document that have more columns than this, with their numbers.
///
/// Tables, links and code are excepted.
pub fn wide_lines<'a>(path: &Path, text: &'a str, columns_max: usize) -> Vec<(usize, &'a str)> {
    let marks = marks(path);
    let mut is_code = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let body = match marks {
            Some(marks) => marks.iter().find_map(|mark| trimmed.strip_prefix(mark)),
            None => Some(trimmed),
        };
        // Code between two comments ends a fence that was left open.
        let Some(body) = body else {
            is_code = false;
            continue;
        };
        if body.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let is_table = body.trim_start().starts_with(['|', '<', '!']) || body.starts_with("    ");
        let is_link = line.contains("](") || line.contains("://");
        if !is_code && !is_table && !is_link && line.chars().count() > columns_max {
            found.push((number + 1, line));
        }
    }
    found
}
