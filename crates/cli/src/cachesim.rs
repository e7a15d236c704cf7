//! `readpath cachesim`: miss ratio of a trace with each eviction policy and memory size,
//! compared with the optimum.

use std::path::{Path, PathBuf};

use readpath_core::eviction;
use readpath_core::policy::Spec;
use readpath_core::unit::PAGE_BYTES;
use readpath_record::notice;
use readpath_sim::size;
use readpath_trace::references::{
    BlockTrace, BlockTraceFormat, OPTIMUM, belady, detect_format, misses,
};
use serde::Serialize;

use crate::args::{CachesimArgs, TraceArgs};
use crate::at_once;
use crate::exit::{CommandResult, Failure};
use crate::html::{Page, check_output_folder};
use crate::input;
use crate::output::{print, print_json};
use crate::output_file::{check_not_needed, write_results};
use crate::packed;
use crate::progress::Interrupt;
use crate::table::Table;

mod objects;
mod picture;

/// Misses of one policy on one trace with one cache size. A block takes one page of the cache.
#[derive(Clone, Debug, Serialize)]
pub struct MissCell {
    /// Name of the trace.
    trace: String,
    /// Number of references in the trace.
    references: usize,
    /// Number of distinct blocks in the trace.
    blocks: u32,
    /// Cache size as given on the command line.
    size: String,
    /// Cache size in blocks.
    pages: u32,
    /// Name of the policy; `optimum` is Belady's, the lowest possible number of misses.
    eviction: String,
    /// Number of references whose block was not in the cache.
    misses: u64,
    /// Misses ÷ references.
    miss_ratio: f64,
}

/// Trace with its name.
pub struct NamedTrace {
    /// File name without the ending of its compression, or the path if several have that name.
    pub name: String,
    /// Parsed references.
    pub trace: BlockTrace,
}

/// Prints the miss ratios, and writes the picture and the page if requested. With `--objects` it
/// does so, without picture and page, for objects.
pub fn run(args: &CachesimArgs) -> CommandResult {
    if args.objects {
        return objects::run(args);
    }
    let policies = match &args.eviction {
        Some(names) => input::parse_specs(names)?,
        None => eviction::policies().map(|policy| Spec::plain(policy.name)).collect(),
    };
    for policy in &policies {
        // A cache of any size shows if the policy is valid.
        let cache_pages = 1;
        eviction::build(policy, cache_pages).map_err(Failure::usage)?;
    }
    let sizes = CacheSize::parse_all(&args.sizes)?;
    check_output_folder(args.html.as_deref())?;
    check_not_needed(args.picture.as_deref(), &args.traces)?;
    check_not_needed(args.html.as_deref(), args.traces.iter().chain(&args.picture))?;
    let picture_format = args.picture.as_deref().map(picture::PictureFormat::of).transpose()?;
    let traces = read_traces(&args.traces, &args.read)?;
    let cells = simulate(&traces, &policies, &sizes)?;
    // One cell for each policy and the optimum.
    let row_cells = policies.len() + 1;
    let trace_cells = row_cells * sizes.len();
    let printed = match args.json {
        true => {
            let no_seed = None;
            print_json(&cells, no_seed)
        }
        false => {
            let table = miss_ratio_table(&cells, &policies);
            print(&format!("{}\n{table}", verdict(&cells, row_cells)))
        }
    };
    if let (Some(picture_format), Some(path)) = (picture_format, &args.picture) {
        write_results(path, &picture::draw(&cells, trace_cells, picture_format))?;
    }
    if let Some(path) = &args.html {
        miss_ratio_page(&cells, trace_cells, &policies).write(path)?;
    }
    printed
}

/// Cache size: a share of the trace's blocks or an absolute size.
#[derive(Clone, Debug)]
pub struct CacheSize {
    /// Text of the option.
    pub text: String,
    /// The parsed text.
    amount: Amount,
}

/// Parsed cache size.
#[derive(Clone, Copy, Debug)]
enum Amount {
    /// Share of the distinct blocks of a trace, in millionths.
    Millionths(u64),
    /// Number of blocks.
    Pages(u32),
}

impl CacheSize {
    /// Parses the values of `--sizes`.
    pub fn parse_all(texts: &[String]) -> Result<Vec<CacheSize>, Failure> {
        texts.iter().map(|text| CacheSize::parse(text)).collect()
    }

    /// Parses one size: a percentage of the trace's blocks, or bytes with a unit, rounded down to
    /// whole pages.
    fn parse(text: &str) -> Result<CacheSize, Failure> {
        let syntax_failure = || {
            Failure::Usage(format!(
                "--sizes {text}: expected parts of a trace's blocks, above 0% and up to 100%, as in \
                 0.5%,20%, or sizes with a unit, as in 64MiB: of {PAGE_BYTES} bytes at least"
            ))
        };
        let amount = match text.strip_suffix('%') {
            Some(percent) => {
                Amount::Millionths(parse_millionths(percent).ok_or_else(syntax_failure)?)
            }
            None => {
                let pages = size::parse(text).ok_or_else(syntax_failure)? / PAGE_BYTES;
                // The simulated cache uses the highest number as a mark.
                let pages =
                    u32::try_from(pages).ok().filter(|&pages| pages > 0 && pages < u32::MAX);
                Amount::Pages(pages.ok_or_else(syntax_failure)?)
            }
        };
        Ok(CacheSize { text: text.to_owned(), amount })
    }

    /// Returns the size in blocks of `trace`, at least one.
    pub fn pages(&self, trace: &BlockTrace) -> u32 {
        match self.amount {
            Amount::Millionths(millionths) => {
                ((u64::from(trace.blocks) * millionths / 1_000_000) as u32).max(1)
            }
            Amount::Pages(pages) => pages,
        }
    }
}

/// Parses a percentage above 0 and up to 100, without its sign, and returns it in millionths.
/// Returns `None` for another text or value.
fn parse_millionths(percent: &str) -> Option<u64> {
    let percent: f64 = percent.parse().ok()?;
    // One percent is 10,000 millionths.
    (percent > 0.0 && percent <= 100.0).then_some((percent * 1e4).round() as u64)
}

/// Names of the trace formats, for messages.
fn format_names() -> String {
    BlockTraceFormat::all().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// Returns the trace format of that name. An unknown name is refused, with the known ones.
fn find_format(name: &str) -> Result<BlockTraceFormat, Failure> {
    BlockTraceFormat::named(name).ok_or_else(|| {
        let names = format_names();
        Failure::Usage(format!("--format {name}: there is no such format; there are: {names}"))
    })
}

/// Replaces each name that several of the traces at `paths` have by the path of its trace. `names`
/// are in the order of `paths`.
fn distinguish_names<'a>(paths: &[PathBuf], names: impl Iterator<Item = &'a mut String>) {
    let mut names: Vec<&mut String> = names.collect();
    let file_names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    for (path, name) in paths.iter().zip(&mut names) {
        if file_names.iter().filter(|file_name| *file_name == *name).count() > 1 {
            **name = path.display().to_string();
        }
    }
}

/// Reads the traces, each up to the number of references in `--first`.
pub fn read_traces(paths: &[PathBuf], args: &TraceArgs) -> Result<Vec<NamedTrace>, Failure> {
    let format = args.format.as_deref().map(find_format).transpose()?;
    let references_max = args.first.map_or(usize::MAX, |references_max| references_max.get());
    let read = |path: &PathBuf| read_trace(path, format, references_max);
    let mut traces: Vec<NamedTrace> = paths.iter().map(read).collect::<Result<_, _>>()?;
    distinguish_names(paths, traces.iter_mut().map(|trace| &mut trace.name));
    Ok(traces)
}

/// Reads and unpacks one trace of at most `references_max` references. Without `format`, detects
/// the format from the name, without the ending of a compression, and the first lines. A caveat of
/// the trace is printed on standard error.
fn read_trace(
    path: &Path,
    format: Option<BlockTraceFormat>,
    references_max: usize,
) -> Result<NamedTrace, Failure> {
    let (name, bytes) = packed::read(path)?;
    let format = format.or_else(|| detect_format(&name, &bytes)).ok_or_else(|| {
        let names = format_names();
        Failure::Usage(format!(
            "{}: its name and its first lines don't say in which format it is; add --format, one of \
             {names}",
            path.display()
        ))
    })?;
    let trace = BlockTrace::parse(&bytes, format, references_max)
        .map_err(|error| Failure::usage_of(path.display(), error))?;
    if let Some(note) = &trace.note {
        notice::print(format_args!("{}: {note}", path.display()));
    }
    Ok(NamedTrace { name, trace })
}

/// Simulates every cell. The optimum, the policy `None`, comes last of each trace and size.
fn simulate(
    traces: &[NamedTrace],
    policies: &[Spec],
    sizes: &[CacheSize],
) -> Result<Vec<MissCell>, Failure> {
    let policies: Vec<Option<&Spec>> = policies.iter().map(Some).chain([None]).collect();
    simulate_cells(traces, sizes, &policies, simulate_cell)
}

/// Simulates every cell in parallel, one thread per processor. The order is trace, size, policy.
/// The result is never an error, and always complete.
fn simulate_cells<Trace: Sync, Size: Sync, Policy: Copy + Sync, Cell: Send>(
    traces: &[Trace],
    sizes: &[Size],
    policies: &[Policy],
    simulate_cell: impl Fn(&Trace, &Size, Policy) -> Cell + Sync,
) -> Result<Vec<Cell>, Failure> {
    let tasks: Vec<(&Trace, &Size, Policy)> = traces
        .iter()
        .flat_map(|trace| sizes.iter().map(move |size| (trace, size)))
        .flat_map(|(trace, size)| policies.iter().map(move |&policy| (trace, size, policy)))
        .collect();
    // A signal ends the process at once, which is safe: a cell leaves no files behind.
    let interrupt = Interrupt::ending_at_once();
    let simulate_task =
        |&(trace, size, policy): &(&Trace, &Size, Policy)| Ok(simulate_cell(trace, size, policy));
    let one_per_processor = None;
    at_once::process_all(&tasks, &simulate_task, one_per_processor, &interrupt)
}

/// Simulates one policy, or Belady's optimum for `None`, on one trace and size.
fn simulate_cell(
    NamedTrace { name, trace }: &NamedTrace,
    size: &CacheSize,
    policy: Option<&Spec>,
) -> MissCell {
    let pages = size.pages(trace);
    let misses = match policy {
        Some(policy) => misses(trace, policy, pages).expect("the policy was built once already"),
        None => belady(trace, pages),
    };
    MissCell {
        trace: name.clone(),
        references: trace.references.len(),
        blocks: trace.blocks,
        size: size.text.clone(),
        pages,
        eviction: policy.map_or_else(|| OPTIMUM.to_owned(), Spec::to_string),
        misses,
        miss_ratio: misses as f64 / trace.references.len() as f64,
    }
}

/// Sentence that names the policy with the lowest mean ratio of its misses to the optimum's. A row
/// is a trace with a size, `row_cells` cells. The optimum misses each block at least once, so no
/// ratio is infinite. A policy is best in a row also if others have equally few misses.
fn verdict(cells: &[MissCell], row_cells: usize) -> String {
    let rows: Vec<&[MissCell]> = cells.chunks(row_cells).collect();
    // The optimum comes last in each row.
    let policy_count = row_cells - 1;
    let least_misses = |row: &[MissCell]| row[..policy_count].iter().map(|cell| cell.misses).min();
    let rows_won = |policy_index: usize| {
        rows.iter().filter(|row| Some(row[policy_index].misses) == least_misses(row)).count()
    };
    let mean_ratio = |policy_index: usize| {
        let ratios = rows
            .iter()
            .map(|row| row[policy_index].misses as f64 / row[policy_count].misses as f64);
        ratios.sum::<f64>() / rows.len() as f64
    };
    let best = (0..policy_count)
        .min_by(|left, right| mean_ratio(*left).total_cmp(&mean_ratio(*right)))
        .expect("a comparison has at least one policy");
    format!(
        "`{}` misses least on average: {:.2} times the misses of the optimum. It is best in {} of \
         {}.\n",
        rows[0][best].eviction,
        mean_ratio(best),
        rows_won(best),
        match rows.len() {
            1 => "1 row".to_owned(),
            count => format!("{count} rows"),
        },
    )
}

/// Table with one row per trace and size, one column per policy, and one for the optimum.
fn miss_ratio_table(cells: &[MissCell], policies: &[Spec]) -> Table {
    let mut header: Vec<String> = ["trace", "size", "pages"].map(str::to_owned).into();
    header.extend(policies.iter().map(Spec::to_string));
    header.push(OPTIMUM.to_owned());
    // All columns after the name of the trace align right.
    let numbers_from = 1;
    let mut table = Table::with_header(header, numbers_from);
    for row in cells.chunks(policies.len() + 1) {
        let mut line = vec![row[0].trace.clone(), row[0].size.clone(), row[0].pages.to_string()];
        line.extend(row.iter().map(|cell| format!("{:.4}", cell.miss_ratio)));
        table.add_row(line);
    }
    // Policies that do not fit into a terminal stand in further blocks, and none is left out.
    table.in_blocks()
}

/// HTML page with one chart for each trace (miss ratio over memory size, one curve for each
/// policy), and the table of all miss ratios. Each trace has `trace_cells` cells.
fn miss_ratio_page(cells: &[MissCell], trace_cells: usize, policies: &[Spec]) -> Page {
    let lead = "The share of references that find nothing in memory, by eviction policy and size of memory. \
                optimum is Belady's, which knows what is to come: no policy can miss less.";
    let mut page = Page::new("Miss ratios", lead);
    for cells in cells.chunks(trace_cells) {
        let curves = picture::curves(cells);
        page.picture(&format!("{}: less is better.", picture::caption(cells)), &curves.svg);
    }
    page.table("Miss ratio, by policy", &miss_ratio_table(cells, policies));
    page
}
