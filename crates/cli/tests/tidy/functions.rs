//! Lengths of functions: a function fits a screen.

use super::{root, sources};

/// Maximum number of lines of a function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Words that may stand before `fn` in a signature.
const QUALIFIERS: [&str; 5] = ["pub", "const", "async", "unsafe", "extern"];

/// Returns the name of the function whose signature begins on this line, if one does.
fn declared_function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        QUALIFIERS.iter().any(|qualifier| word.split('(').next() == Some(qualifier))
            || (word.starts_with('"') && word.ends_with('"'))
            || (word.ends_with(')') && !word.contains('('))
    };
    let name = after.split(|it: char| !(it.is_alphanumeric() || it == '_')).next()?;
    (before.split_whitespace().all(is_qualifier) && !name.is_empty()).then_some(name)
}

/// Functions of a formatted text that are longer than `lines_max`, with their numbers of lines. The
/// closing brace of a function has the indentation of its signature.
fn long_functions(text: &str, lines_max: usize) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = declared_function(line) else { continue };
        // A signature without a body ends with a semicolon, or in a macro with the next function.
        let is_end = |&at: &usize| {
            indentation(lines[at]) == indentation(line)
                && (lines[at].ends_with(['}', ';'])
                    || (at > first && declared_function(lines[at]).is_some()))
        };
        let Some(last) = (first..lines.len()).find(is_end) else { continue };
        let count = last + 1 - first;
        if count > lines_max {
            found.push((name, count));
        }
    }
    found
}

#[test]
fn functions_are_short() {
    let mut faults = Vec::new();
    let (mut functions, skipped) = (0, ["target", "tests", "benches"]);
    for folder in ["crates", "python/src"] {
        for path in sources::files(&root().join(folder), &[".rs"], &skipped) {
            let text = std::fs::read_to_string(&path).unwrap();
            functions += text.lines().filter_map(declared_function).count();
            for (name, lines) in long_functions(&text, FUNCTION_LINES_MAX) {
                let path = path.display();
                faults.push(format!(
                    "{path}: `{name}` has {lines} lines, {FUNCTION_LINES_MAX} at most"
                ));
            }
        }
    }
    assert!(functions > 5_000, "{functions} functions are found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn check_of_functions_finds_one_with_a_line_too_many() {
    let function = |lines: usize, signature: &str| {
        format!("impl A {{\n    {signature} {{\n{}    }}\n}}\n", "        x();\n".repeat(lines - 2))
    };
    for signature in [
        "fn f(&self)",
        "pub fn f()",
        "pub(in crate::a) const fn f()",
        "pub unsafe extern \"C\" fn f(\n        a: u32,\n    ) -> u32",
    ] {
        let signature_lines = signature.lines().count();
        let longest = function(FUNCTION_LINES_MAX + 1 - signature_lines, signature);
        assert_eq!(long_functions(&longest, FUNCTION_LINES_MAX), []);
        let too_long = function(FUNCTION_LINES_MAX + 2 - signature_lines, signature);
        assert_eq!(long_functions(&too_long, FUNCTION_LINES_MAX), [("f", FUNCTION_LINES_MAX + 1)]);
    }
    let bodiless = format!("trait A {{\n    fn f(&self);\n{}}}\n", "    // x\n".repeat(80));
    assert_eq!(long_functions(&bodiless, FUNCTION_LINES_MAX), []);
}
