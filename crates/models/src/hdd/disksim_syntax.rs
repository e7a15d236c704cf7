//! Parser for the syntax of DiskSim's parameter files.
//!
//! A block is `KIND NAME { Key words = value, … }`. A value is a number, a word, a quoted text, a
//! list in brackets, a block `KIND { … }`, or `source FILE`, which is replaced by the block in that
//! file. `#` starts a comment. Commas end values. Extra commas are ignored.
//!
//! The file of a whole system (`.parv`) also contains statements between its blocks:
//!
//! - `source FILE` includes a file.
//! - `instantiate [ NAMES ] as BLOCK` creates components, which the block of that name describes.
//! - `topology KIND NAME [ KIND NAME [ … ], … ]` connects the components.

use std::path::Path;

use crate::fields::{FieldBlock, FieldValue, FileError, NamedValue};

/// Maximum nesting of blocks and files. DiskSim's own files nest 4 levels.
const DEPTH_MAX: usize = 16;

/// Function that reads a file's text. A parameter, so that this module has no file access.
pub(super) type ReadText<'a> = &'a dyn Fn(&Path) -> Result<String, String>;

/// Contents of a file, with included files in place.
#[derive(Debug, Default)]
pub(super) struct Statements {
    /// Blocks of the file.
    pub blocks: Vec<FieldBlock>,
    /// Created components: name, and name of the block that describes it.
    pub instances: Vec<(String, String)>,
    /// Root of the topology.
    pub topology: Option<SystemPart>,
}

/// A component of a system, with the components connected to it.
#[derive(Debug)]
pub(super) struct SystemPart {
    /// Type of the component, such as `disksim_bus`.
    pub kind: String,
    /// Name, by which its instance or block is found.
    pub name: String,
    /// Components connected to it.
    pub parts: Vec<SystemPart>,
}

/// Reads the file at `path`, with its included files.
pub(super) fn read_statements(path: &Path, read: ReadText<'_>) -> Result<Statements, FileError> {
    statements_of(path, read, 0)
}

/// Reads the statements of a file and of included files. `depth` is the nesting level, 0 for the
/// outermost file.
fn statements_of(path: &Path, read: ReadText<'_>, depth: usize) -> Result<Statements, FileError> {
    let file = path.display().to_string();
    let file_error =
        |problem| FileError { file: file.clone(), line: 0, field: String::new(), problem };
    let text = read(path).map_err(file_error)?;
    let tokens = split_into_tokens(&text, &file)?;
    let mut parser = FileParser { tokens, next_index: 0, file: file.clone(), path, read, depth };
    let mut statements = Statements::default();
    while parser.peek().is_some() {
        if parser.take_if_next(&FileToken::Comma) {
            continue;
        }
        let line = parser.line();
        let words = parser.read_words()?;
        if let Some(name) = words.strip_prefix("source ") {
            let included = parser.read_included(line, name)?;
            statements.blocks.extend(included.blocks);
            statements.instances.extend(included.instances);
            statements.topology = statements.topology.or(included.topology);
        } else if words == "instantiate" {
            parser.read_instances(&mut statements.instances)?;
        } else if let Some(root) = words.strip_prefix("topology ") {
            // The file's own topology has precedence over one of an included file.
            statements.topology = Some(parser.read_part(root)?);
        } else {
            parser.expect(&FileToken::Open, "`{` after the block's name")?;
            statements.blocks.push(parser.read_block(words)?);
        }
    }
    if statements.blocks.is_empty() {
        return Err(file_error("holds no block; expected `disksim_disk NAME { … }`".to_owned()));
    }
    Ok(statements)
}

/// A token of the file format.
#[derive(Clone, Debug, PartialEq)]
enum FileToken {
    /// `{`, before the fields of a block.
    Open,
    /// `}`.
    Close,
    /// `[`, before the items of a list or the parts of a component.
    OpenList,
    /// `]`.
    CloseList,
    /// `=`, between a key and its value.
    Equals,
    /// `,`, at the end of a value.
    Comma,
    /// Characters up to white space or a sign: part of a key, a name or a number.
    Word(String),
    /// Text between quotation marks, without them.
    Quoted(String),
}

impl FileToken {
    /// The token as it stands in the file, without quotation marks.
    fn text(&self) -> String {
        match self {
            FileToken::Open => "{".to_owned(),
            FileToken::Close => "}".to_owned(),
            FileToken::OpenList => "[".to_owned(),
            FileToken::CloseList => "]".to_owned(),
            FileToken::Equals => "=".to_owned(),
            FileToken::Comma => ",".to_owned(),
            FileToken::Word(word) | FileToken::Quoted(word) => word.clone(),
        }
    }
}

/// Splits the text into tokens, each with its line number.
fn split_into_tokens(text: &str, file: &str) -> Result<Vec<(usize, FileToken)>, FileError> {
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let single = match first {
                '#' => break,
                '{' => Some(FileToken::Open),
                '}' => Some(FileToken::Close),
                '[' => Some(FileToken::OpenList),
                ']' => Some(FileToken::CloseList),
                '=' => Some(FileToken::Equals),
                ',' => Some(FileToken::Comma),
                _ => None,
            };
            let length = match single {
                Some(token) => {
                    tokens.push((index + 1, token));
                    1
                }
                None if first.is_whitespace() => first.len_utf8(),
                None if first == '"' => {
                    let text_length = rest[1..].find('"').ok_or_else(|| FileError {
                        file: file.to_owned(),
                        line: index + 1,
                        field: String::new(),
                        problem: "a quoted text has no end".to_owned(),
                    })?;
                    tokens.push((index + 1, FileToken::Quoted(rest[1..=text_length].to_owned())));
                    // The text and both quotation marks.
                    text_length + 2
                }
                None => {
                    let is_end = |c: char| c.is_whitespace() || "{}[]=,#\"".contains(c);
                    let length = rest.find(is_end).unwrap_or(rest.len());
                    tokens.push((index + 1, FileToken::Word(rest[..length].to_owned())));
                    length
                }
            };
            rest = &rest[length..];
        }
    }
    Ok(tokens)
}

/// Parser state of one file.
struct FileParser<'a> {
    /// Tokens, each with its line.
    tokens: Vec<(usize, FileToken)>,
    /// Index of the next token.
    next_index: usize,
    /// Name of the file, for errors.
    file: String,
    /// Path of the file. Included files are relative to its folder.
    path: &'a Path,
    /// Reads the text of an included file.
    read: ReadText<'a>,
    /// Nesting level of blocks, parts and files.
    depth: usize,
}

impl FileParser<'_> {
    /// Returns the next token, if any.
    fn peek(&self) -> Option<&FileToken> {
        self.tokens.get(self.next_index).map(|(_, token)| token)
    }

    /// Returns the line of the next token, or of the last one at the end of the file.
    fn line(&self) -> usize {
        let index = self.next_index.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(index).map_or(0, |(line, _)| *line)
    }

    /// Consumes `token` if it is next. Returns true in that case.
    fn take_if_next(&mut self, token: &FileToken) -> bool {
        let is_next = self.peek() == Some(token);
        self.next_index += usize::from(is_next);
        is_next
    }

    /// Creates an error for `field` at `line` of this file.
    fn error(&self, line: usize, field: &str, problem: String) -> FileError {
        FileError { file: self.file.clone(), line, field: field.to_owned(), problem }
    }

    /// Creates the error for an unexpected token. `expected` describes the valid ones.
    fn unexpected(&self, expected: &str) -> FileError {
        let found = self
            .peek()
            .map_or("the end of the file".to_owned(), |token| format!("`{}`", token.text()));
        self.error(self.line(), "", format!("expected {expected}, found {found}"))
    }

    /// Consumes `token`, or returns the error that it is missing. `expected` describes it.
    fn expect(&mut self, token: &FileToken, expected: &str) -> Result<(), FileError> {
        if self.take_if_next(token) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    /// Reads one or more words up to the next sign or line end. Joins them by single spaces: keys
    /// and values of DiskSim consist of several words. Fails if the next token is no word. Quoted
    /// texts count as words.
    fn read_words(&mut self) -> Result<String, FileError> {
        let mut words: Vec<String> = Vec::new();
        let line = self.line();
        while let Some(FileToken::Word(word) | FileToken::Quoted(word)) = self.peek() {
            if self.line() != line {
                break;
            }
            words.push(word.clone());
            self.next_index += 1;
        }
        if words.is_empty() { Err(self.unexpected("a name")) } else { Ok(words.join(" ")) }
    }

    /// Reads the fields of a block after its opening brace, up to the closing one. `words` stand
    /// before the brace: the type and, if given, the name. Fails on a second field of the same key.
    fn read_block(&mut self, words: String) -> Result<FieldBlock, FileError> {
        // The caller has consumed the opening brace, so the previous token exists.
        let line = self.tokens[self.next_index - 1].0;
        if self.depth >= DEPTH_MAX {
            return Err(self.error(line, &words, format!("blocks nest deeper than {DEPTH_MAX}")));
        }
        self.depth += 1;
        let mut fields: Vec<NamedValue> = Vec::new();
        while !self.take_if_next(&FileToken::Close) {
            if self.take_if_next(&FileToken::Comma) {
                continue;
            }
            let line = self.line();
            let key = self.read_words()?;
            self.expect(&FileToken::Equals, &format!("`=` after `{key}`"))?;
            if let Some(first) = fields.iter().find(|field| field.key == key) {
                let problem = format!("stands here a second time, first on line {}", first.line);
                return Err(self.error(line, &key, problem));
            }
            let value = self.read_value()?;
            // DiskSim's files state no sources of their values.
            fields.push(NamedValue::new(key, line, value, None));
        }
        self.depth -= 1;
        let (kind, name) = words.split_once(' ').unwrap_or((&words, ""));
        let (kind, name) = (kind.to_owned(), name.to_owned());
        Ok(FieldBlock {
            file: self.file.clone(),
            line,
            kind,
            name,
            fields,
            defaults: Vec::new().into(),
        })
    }

    /// Reads a value: a number, a text, a list or a block.
    fn read_value(&mut self) -> Result<FieldValue, FileError> {
        if self.take_if_next(&FileToken::OpenList) {
            return self.read_list();
        }
        let line = self.line();
        let is_quoted = matches!(self.peek(), Some(FileToken::Quoted(_)));
        let words = self.read_words()?;
        if is_quoted {
            return Ok(FieldValue::Text(words));
        }
        if self.take_if_next(&FileToken::Open) {
            return self.read_block(words).map(FieldValue::Block);
        }
        if let Some(name) = words.strip_prefix("source ") {
            return self.read_source(line, name);
        }
        // The words inf and nan are no numbers here.
        Ok(match words.parse::<f64>() {
            Ok(number) if number.is_finite() => FieldValue::Number(number),
            _ => FieldValue::Text(words),
        })
    }

    /// Reads a list after its opening bracket.
    fn read_list(&mut self) -> Result<FieldValue, FileError> {
        let mut items = Vec::new();
        while !self.take_if_next(&FileToken::CloseList) {
            if self.take_if_next(&FileToken::Comma) {
                continue;
            }
            let line = self.line();
            items.push((line, self.read_value()?));
        }
        Ok(FieldValue::List(items))
    }

    /// Reads `[ NAMES ] as BLOCK` after the word `instantiate`. `a0 .. a3` means four names.
    fn read_instances(&mut self, instances: &mut Vec<(String, String)>) -> Result<(), FileError> {
        self.expect(&FileToken::OpenList, "`[` after `instantiate`")?;
        let mut names = Vec::new();
        while !self.take_if_next(&FileToken::CloseList) {
            if !self.take_if_next(&FileToken::Comma) {
                let words = self.read_words()?;
                let ends = words.split_once("..");
                match ends.and_then(|(first, last)| numbered_names(first, last)) {
                    Some(range) => names.extend(range),
                    // Not a range: single names, separated by spaces.
                    None => names.extend(words.split(' ').map(str::to_owned)),
                }
            }
        }
        let line = self.line();
        let words = self.read_words()?;
        let Some(block_name) = words.strip_prefix("as ") else {
            return Err(self.error(line, "instantiate", format!("expected `as`, found `{words}`")));
        };
        instances.extend(names.into_iter().map(|name| (name, block_name.to_owned())));
        Ok(())
    }

    /// Reads the component with the words `words` (type and name), including its `[ parts ]`. The
    /// brackets are required, empty for a drive.
    fn read_part(&mut self, words: &str) -> Result<SystemPart, FileError> {
        let line = self.line();
        if self.depth >= DEPTH_MAX {
            return Err(self.error(line, words, format!("parts nest deeper than {DEPTH_MAX}")));
        }
        self.depth += 1;
        self.expect(&FileToken::OpenList, &format!("`[` after `{words}`"))?;
        let mut parts = Vec::new();
        while !self.take_if_next(&FileToken::CloseList) {
            if !self.take_if_next(&FileToken::Comma) {
                let words = self.read_words()?;
                parts.push(self.read_part(&words)?);
            }
        }
        self.depth -= 1;
        let (kind, name) = words.split_once(' ').unwrap_or((words, ""));
        Ok(SystemPart { kind: kind.to_owned(), name: name.to_owned(), parts })
    }

    /// Returns the first block of the included file `name`, which is named in line `line`.
    fn read_source(&self, line: usize, name: &str) -> Result<FieldValue, FileError> {
        let blocks = self.read_included(line, name)?.blocks;
        Ok(FieldValue::Block(blocks.into_iter().next().expect("a file without blocks is refused")))
    }

    /// Reads the included file `name`, relative to the folder of this one. `line` is the line that
    /// includes it. Errors that have no line of their own (line 0, as for a missing file) get this
    /// one.
    fn read_included(&self, line: usize, name: &str) -> Result<Statements, FileError> {
        if self.depth >= DEPTH_MAX {
            return Err(self.error(
                line,
                name,
                format!("files name files deeper than {DEPTH_MAX}"),
            ));
        }
        let path = self.path.parent().unwrap_or(Path::new("")).join(name);
        statements_of(&path, self.read, self.depth + 1).map_err(|error| match error.line {
            0 => self.error(line, "source", format!("{}: {}", error.file, error.problem)),
            _ => error,
        })
    }
}

/// Returns the names from `first` to `last`, which differ in their final number. `None` if a name
/// has no such number, if they differ in more, or if `last` precedes `first`. Also `None` for more
/// than 65,536 names, a limit that is chosen. Leading zeros of the numbers are lost.
fn numbered_names(first: &str, last: &str) -> Option<Vec<String>> {
    let split_number = |name: &str| {
        let stem = name.trim().trim_end_matches(|letter: char| letter.is_ascii_digit());
        let number = name.trim()[stem.len()..].parse::<u32>().ok()?;
        Some((stem.to_owned(), number))
    };
    let ((stem, first), (last_stem, last)) = (split_number(first)?, split_number(last)?);
    let is_valid_range = stem == last_stem && first <= last && last - first < 65_536;
    is_valid_range.then(|| (first..=last).map(|number| format!("{stem}{number}")).collect())
}
