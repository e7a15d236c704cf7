//! Fences of the language: comments and documents in plain technical English.
//!
//! CONTRIBUTING.md lists the rules, under "Language". Each fault is printed with file, line and
//! rule. `cargo test -p readpath-cli --test language -- --nocapture table` prints the measured
//! counts per crate and document.

mod comment_names;
mod prose;
mod rules;
#[path = "../support/sources.rs"]
mod sources;
mod type_names;

use std::path::{Path, PathBuf};

use prose::{Sentence, sentences};

/// Most sentences of *what* per 1,000 words of comments, in every crate and document.
const WHAT_PER_1000_MAX: f64 = 2.0;

/// Largest share of sentences that begin with a pronoun clause, in percent.
const PRONOUN_STARTS_PERCENT_MAX: f64 = 5.0;

/// Largest mean of words per sentence in the documents that users read.
const WORDS_PER_SENTENCE_MAX: f64 = 17.0;

/// Largest share of sentences of more than 30 words in the documents that users read, in percent.
const LONG_SENTENCES_PERCENT_MAX: f64 = 5.0;

/// Longest line of a comment or a document, in characters.
const COLUMNS_MAX: usize = 100;

/// Smallest number of distinct type names ÷ types defined.
const DISTINCT_TYPE_NAMES_MIN: f64 = 0.80;

/// Root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files below `folder` with one of these endings, without build outputs and recorded data.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    const SKIPPED: [&str; 6] = ["target", "recorded", "results", "notes", "corpus", "dist"];
    sources::files(folder, endings, &SKIPPED)
}

/// One crate or document, with its files.
struct Group {
    name: String,
    files: Vec<PathBuf>,
}

/// Every crate's sources and tests, the Python package, and every document.
fn groups() -> Vec<Group> {
    let root = root();
    let mut groups = Vec::new();
    let mut crates: Vec<PathBuf> =
        std::fs::read_dir(root.join("crates")).unwrap().map(|it| it.unwrap().path()).collect();
    crates.sort();
    for folder in crates {
        let name = format!("crates/{}", folder.file_name().unwrap().to_string_lossy());
        for part in ["src", "tests", "benches", "examples"] {
            let files = files(&folder.join(part), &[".rs"]);
            groups.push(Group { name: format!("{name}/{part}"), files });
        }
    }
    groups
        .push(Group { name: "python".into(), files: files(&root.join("python"), &[".rs", ".py"]) });
    groups.push(Group {
        name: "bench (scripts)".into(),
        files: files(&root.join("bench"), &[".py"]),
    });
    groups.push(Group { name: "book".into(), files: files(&root.join("book/src"), &[".md"]) });
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "RELEASING.md",
        "CHANGELOG.md",
        "bench/README.md",
        "python/README.md",
    ] {
        groups.push(Group { name: name.into(), files: vec![root.join(name)] });
    }
    groups.retain(|group| !group.files.is_empty());
    groups
}

/// Counts over the sentences of a group.
#[derive(Default)]
struct Counts {
    words: usize,
    sentences: usize,
    long: usize,
    what: usize,
    pronoun_starts: usize,
    persons: usize,
}

impl Counts {
    fn of(group: &Group) -> Counts {
        let mut counts = Counts::default();
        for sentence in group.files.iter().flat_map(|path| sentences(path)) {
            counts.add(&sentence);
        }
        counts
    }

    fn add(&mut self, sentence: &Sentence) {
        self.words += sentence.words.len();
        self.sentences += 1;
        self.long += usize::from(sentence.words.len() > 30);
        self.what += sentence.count(&["what"]);
        self.pronoun_starts += usize::from(rules::begins_with_pronoun(&sentence.text));
        self.persons += sentence.count(&["nobody", "somebody", "whoever"]);
    }

    fn what_per_1000(&self) -> f64 {
        1000.0 * self.what as f64 / self.words.max(1) as f64
    }

    fn pronoun_percent(&self) -> f64 {
        100.0 * self.pronoun_starts as f64 / self.sentences.max(1) as f64
    }

    fn long_percent(&self) -> f64 {
        100.0 * self.long as f64 / self.sentences.max(1) as f64
    }

    fn words_per_sentence(&self) -> f64 {
        self.words as f64 / self.sentences.max(1) as f64
    }
}

/// Prints the table of counts; the limits are held by the tests below.
#[test]
fn table_of_language_counts_is_printed() {
    println!(
        "{:26} {:>7} {:>6} {:>7} {:>9} {:>9}",
        "", "words", "w/sent", ">30 w %", "what/1000", "pronoun %"
    );
    for group in groups() {
        let counts = Counts::of(&group);
        println!(
            "{:26} {:7} {:6.1} {:7.1} {:9.1} {:9.1}",
            group.name,
            counts.words,
            counts.words_per_sentence(),
            counts.long_percent(),
            counts.what_per_1000(),
            counts.pronoun_percent()
        );
    }
    let (distinct, defined) = type_names::counted(&root());
    println!("type names: {distinct} distinct of {defined} defined");
    assert!(defined > 500, "the types are found");
}

#[test]
fn comments_use_nouns_and_not_pronoun_clauses() {
    let mut faults = Vec::new();
    for group in groups() {
        let counts = Counts::of(&group);
        // A small group passes with two: a share of few sentences says nothing.
        if counts.what_per_1000() > WHAT_PER_1000_MAX && counts.what > 2 {
            faults.push(format!(
                "{}: *what* {:.1} times in 1,000 words, {WHAT_PER_1000_MAX} at most",
                group.name,
                counts.what_per_1000()
            ));
        }
        if counts.pronoun_percent() > PRONOUN_STARTS_PERCENT_MAX && counts.pronoun_starts > 2 {
            faults.push(format!(
                "{}: {:.1} % of the sentences begin with a pronoun clause, {PRONOUN_STARTS_PERCENT_MAX} at most",
                group.name,
                counts.pronoun_percent()
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn documents_have_short_sentences() {
    let mut faults = Vec::new();
    let documents = ["README.md", "ARCHITECTURE.md", "book", "CONTRIBUTING.md", "bench/README.md"];
    for group in groups().iter().filter(|group| documents.contains(&group.name.as_str())) {
        let counts = Counts::of(group);
        if counts.words_per_sentence() > WORDS_PER_SENTENCE_MAX
            || counts.long_percent() > LONG_SENTENCES_PERCENT_MAX
        {
            faults.push(format!(
                "{}: {:.1} words a sentence ({WORDS_PER_SENTENCE_MAX} at most), {:.1} % over 30 words \
                 ({LONG_SENTENCES_PERCENT_MAX} at most)",
                group.name,
                counts.words_per_sentence(),
                counts.long_percent()
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn text_contains_no_banned_words() {
    let mut faults = Vec::new();
    for path in groups().iter().flat_map(|group| &group.files) {
        for sentence in sentences(path) {
            for rule in rules::banned(&sentence) {
                faults.push(format!("{}:{}: {rule}", path.display(), sentence.line));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn lines_of_comments_and_documents_fit_in_100_columns() {
    let mut faults = Vec::new();
    for path in groups().iter().flat_map(|group| &group.files) {
        let text = std::fs::read_to_string(path).unwrap();
        for (number, line) in prose::wide_lines(path, &text, COLUMNS_MAX) {
            let columns = line.chars().count();
            faults.push(format!(
                "{}:{number}: {columns} columns, {COLUMNS_MAX} at most",
                path.display()
            ));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn comments_of_functions_name_existing_parameters_and_functions() {
    let faults = comment_names::faults(&root());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn type_names_are_distinct() {
    let (distinct, defined) = type_names::counted(&root());
    let share = distinct as f64 / defined as f64;
    assert!(
        share >= DISTINCT_TYPE_NAMES_MIN,
        "{distinct} distinct names of {defined} types: {share:.2}, at least {DISTINCT_TYPE_NAMES_MIN}; most \
         used: {}",
        type_names::most_used(&root()).join(", ")
    );
}

#[test]
fn language_checks_detect_the_faults_of_a_sample() {
    let path = Path::new("sample.rs");
    let text = "/// What nobody told the law.\nfn a() {}\n\n/// Number of pages in the window.\nfn b() {}\n";
    let found = prose::sentences_of(path, text);
    assert_eq!(found.len(), 2);
    assert!(rules::begins_with_pronoun(&found[0].text));
    assert!(!rules::begins_with_pronoun(&found[1].text));
    let faults = rules::banned(&found[0]);
    assert_eq!(faults.len(), 3, "nobody, told, law: {faults:?}");
    assert!(rules::banned(&found[1]).is_empty());
    let wide = format!("// {}\n", "word ".repeat(25));
    assert_eq!(prose::wide_lines(path, &wide, COLUMNS_MAX).len(), 1);
}
