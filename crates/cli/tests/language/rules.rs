//! Rules for single sentences: their start, and words that have a better one.

use crate::prose::Sentence;

/// Starts of a sentence that hide its subject.
const PRONOUN_STARTS: [&str; 26] = [
    "Whether", "What", "Whatever", "Who", "Whoever", "How", "Where", "As there", "As it",
    "As that", "Of", "Nor", "So", "That", "Those", "Which", "When", "None", "Nothing", "The same",
    "Such", "Whom", "Whose", "Not so", "As to", "Nobody",
];

/// Words, in lower case, and the words of the field in their place.
const BANNED: [(&str, &str); 26] = [
    ("law", "policy"),
    ("laws", "policies"),
    ("nobody", "the subject"),
    ("somebody", "the subject"),
    ("whoever", "the subject"),
    ("whom", "the subject"),
    ("lent", "shared"),
    ("lend", "share"),
    ("lends", "shares"),
    ("lender", "sharer"),
    ("told", "reported"),
    ("tells", "reports"),
    ("door", "API, entry point"),
    ("doors", "APIs"),
    ("beside", "next to, compared with"),
    ("anew", "again"),
    ("rival", "baseline"),
    ("rivals", "baselines"),
    ("everyday", "access patterns, `readpath bench`"),
    ("knob", "parameter"),
    ("knobs", "parameters"),
    ("patience", "idle timeout"),
    ("survival", "run-length distribution"),
    ("unsure", "covariance"),
    ("regretted", "worse than the best"),
    ("heir", "fork-local cache"),
];

/// Phrases, in lower case, and the words in their place.
const BANNED_PHRASES: [(&str, &str); 6] = [
    ("so many", "the number's name"),
    ("is to be had", "is available"),
    ("in vain", "wasted"),
    ("that of", "the noun"),
    ("those of", "the noun"),
    ("are to be had", "are available"),
];

/// True if the sentence begins with a clause that stands for a noun.
pub fn begins_with_pronoun(sentence: &str) -> bool {
    PRONOUN_STARTS.iter().any(|start| {
        sentence.strip_prefix(start).is_some_and(|rest| {
            !rest.starts_with(|letter: char| letter.is_alphanumeric() || letter == '-')
        })
    })
}

/// Faults of a sentence: each word or phrase that has a better one, with it.
pub fn banned(sentence: &Sentence) -> Vec<String> {
    let mut faults = Vec::new();
    for (word, better) in BANNED {
        // Zipf's law is the name of a distribution.
        let is_zipf = word == "law" && sentence.text.contains("Zipf");
        if !is_zipf && sentence.count(&[word]) > 0 {
            faults.push(format!("\"{word}\": write {better}"));
        }
    }
    let text = format!(" {} ", sentence.words.join(" "));
    for (phrase, better) in BANNED_PHRASES {
        if text.contains(&format!(" {phrase} ")) {
            faults.push(format!("\"{phrase}\": write {better}"));
        }
    }
    faults
}
