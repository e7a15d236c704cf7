//! `readpath policies`: the list of policies, or one policy in full, also as a picture.

use readpath_core::policy::{Policy, SpecError};
use readpath_core::{chunking, eviction, readahead, scheduler, swapin};
use readpath_trace::objects::ADMISSION_POLICIES;

use crate::args::PoliciesArgs;
use crate::exit::{CommandResult, Failure};
use crate::output::{print, print_plain};

mod demo_run;
mod picture;

/// Kind of decision that a policy makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyKind {
    /// Pages of a file to read ahead of the program.
    Readahead,
    /// Pages to bring in from the swap area with the touched one.
    SwapIn,
    /// Next request for the device.
    Scheduler,
    /// Pieces of a raw transfer.
    Chunking,
    /// Page or block that leaves the cache.
    Eviction,
    /// Missed objects that enter the cache.
    Admission,
}

/// Each kind with its name on the command line and its policies. Readahead, eviction and scheduler
/// policies that other crates have registered are among them.
fn kinds() -> [(PolicyKind, &'static str, Vec<&'static Policy>); 6] {
    [
        (PolicyKind::Readahead, "readahead", readahead::policies().collect()),
        (PolicyKind::SwapIn, "swap-in", swapin::POLICIES.iter().collect()),
        (PolicyKind::Scheduler, "scheduler", scheduler::policies().collect()),
        (PolicyKind::Chunking, "chunking", chunking::POLICIES.iter().collect()),
        (PolicyKind::Eviction, "eviction", eviction::policies().collect()),
        (PolicyKind::Admission, "admission", ADMISSION_POLICIES.iter().collect()),
    ]
}

/// Policy with its kind.
struct FoundPolicy {
    /// Kind of the policy.
    kind: PolicyKind,
    /// Name of the kind on the command line.
    kind_name: &'static str,
    /// Name, summary and manual page.
    policy: &'static Policy,
}

/// Prints the list, or the policies of one name in full, or draws a demo run of a single policy.
pub fn run(args: &PoliciesArgs) -> CommandResult {
    let Some(name) = &args.name else { return print(&list_text()) };
    let found = find_policies(name)?;
    // Pages have lines of their own, which `print` could break in a terminal.
    let Some(picture_path) = &args.picture else { return print_plain(&full_text(&found)) };
    let [found] = &found[..] else {
        let names: Vec<String> = found
            .iter()
            .map(|found| format!("{}/{}", found.kind_name, found.policy.name))
            .collect();
        return Err(Failure::Usage(format!(
            "{name}: policies of {} kinds have this name, and a picture is of one; name {}",
            names.len(),
            names.join(" or ")
        )));
    };
    let scene = demo_run::draw(found.kind, found.policy.name).map_err(Failure::usage)?;
    std::fs::write(picture_path, picture::svg(&scene)).map_err(|error| {
        Failure::Usage(format!(
            "--picture {}: {error}; name a file that can be written",
            picture_path.display()
        ))
    })?;
    print(&format!("{}: {}\n", picture_path.display(), scene.figures_line))
}

/// List of all policies by kind, one line each.
fn list_text() -> String {
    let mut text = String::new();
    for (_, kind, policies) in kinds() {
        text += &format!("{kind}:\n");
        for policy in policies {
            text += &format!("  {:16} {}\n", policy.name, policy.line);
        }
    }
    text + "\n`readpath policies NAME` prints one policy in full.\n"
}

/// Returns the policies with this name: of all kinds, or of one kind with `KIND/` before the name.
/// `none` is a readahead and a swap-in policy; `swap-in/none` is unambiguous. An unknown name is an
/// error that lists the known ones.
fn find_policies(name: &str) -> Result<Vec<FoundPolicy>, Failure> {
    let all_policies = || {
        kinds().into_iter().flat_map(|(kind, kind_name, policies)| {
            policies.into_iter().map(move |policy| FoundPolicy { kind, kind_name, policy })
        })
    };
    let (kind, policy_name) =
        name.split_once('/').map_or((None, name), |(kind, name)| (Some(kind), name));
    let found: Vec<FoundPolicy> = all_policies()
        .filter(|found| {
            found.policy.name == policy_name && kind.is_none_or(|kind| kind == found.kind_name)
        })
        .collect();
    if found.is_empty() {
        let names = all_policies().map(|found| found.policy.name).collect();
        let name = name.to_owned();
        return Err(Failure::usage(SpecError::UnknownName { kind: "policy", name, known: names }));
    }
    Ok(found)
}

/// Full description of each policy found: name, kind, a summary in one line, and its page.
fn full_text(found: &[FoundPolicy]) -> String {
    let pages: Vec<String> = found
        .iter()
        .map(|FoundPolicy { kind_name, policy, .. }| {
            let lines: Vec<&str> = policy.page().collect();
            format!("{} ({kind_name}): {}\n\n{}\n", policy.name, policy.line, lines.join("\n"))
        })
        .collect();
    pages.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_page() {
        for policy in kinds().into_iter().flat_map(|(_, _, policies)| policies) {
            assert!(policy.page().count() > 3, "{} has no page", policy.name);
        }
    }

    #[test]
    fn policy_name_of_two_kinds_is_qualified_by_its_kind() {
        let kinds_of = |name: &str| -> Vec<PolicyKind> {
            find_policies(name).unwrap().iter().map(|found| found.kind).collect()
        };
        assert_eq!(kinds_of("none"), [PolicyKind::Readahead, PolicyKind::SwapIn]);
        assert_eq!(kinds_of("swap-in/none"), [PolicyKind::SwapIn]);
        assert!(find_policies("scheduler/none").is_err());
    }
}
