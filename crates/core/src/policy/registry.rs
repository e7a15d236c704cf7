//! Policies of other crates: registered once, then available by name in the whole process.
//!
//! A registry is a list that only grows. Its entries live as long as the process, so that a name
//! keeps its meaning. Registration is safe from several threads; a name belongs to the first one.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

use once_cell::race::OnceBox;

use super::Policy;

/// Error of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// The name is empty, or contains a character other than letters, digits, `-` and `_`. Text
    /// forms separate names by other characters.
    BadName {
        /// The name.
        name: String,
    },
    /// A policy or device of this kind has the name already.
    NameTaken {
        /// The name.
        name: String,
    },
}

impl RegisterError {
    /// Checks the form of a name, and that none of `names` equals it.
    ///
    /// # Errors
    /// The name is malformed or taken.
    pub fn check<'a>(
        name: &str,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Result<(), RegisterError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || !name.bytes().all(is_allowed) {
            return Err(RegisterError::BadName { name: name.to_owned() });
        }
        match names.any(|known| known == name) {
            true => Err(RegisterError::NameTaken { name: name.to_owned() }),
            false => Ok(()),
        }
    }
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::BadName { name } => write!(
                f,
                "`{name}` cannot be a name: use letters, digits, `-` and `_`, as in `two-blocks`"
            ),
            RegisterError::NameTaken { name } => {
                write!(f, "the name `{name}` is taken; register under another name")
            }
        }
    }
}

impl core::error::Error for RegisterError {}

/// Registered policies of one kind, each with its constructor `B`.
pub(crate) struct Registry<B: 'static> {
    /// The entry that was registered first; unset in an empty registry.
    first: OnceBox<Entry<B>>,
}

/// A registered policy, and the link to the one registered after it.
struct Entry<B: 'static> {
    /// Name and description of the policy.
    policy: Policy,
    /// Its constructor.
    build: B,
    /// The entry that was registered next; unset for the newest one.
    next: OnceBox<Entry<B>>,
}

impl<B: Copy + Send + Sync> Registry<B> {
    /// An empty registry.
    pub(crate) const fn new() -> Registry<B> {
        Registry { first: OnceBox::new() }
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// The name is malformed, or one of `built_in` or of the registered policies has it.
    pub(crate) fn register(
        &'static self,
        policy: Policy,
        build: B,
        built_in: &[Policy],
    ) -> Result<(), RegisterError> {
        RegisterError::check(policy.name, built_in.iter().map(|policy| policy.name))?;
        let mut entry = Box::new(Entry { policy, build, next: OnceBox::new() });
        // Follows the list to the first unset link. A `OnceBox` is set once, by any thread.
        let mut slot = &self.first;
        loop {
            // A present entry, of this or another thread, must have another name.
            if let Some(present) = slot.get() {
                RegisterError::check(policy.name, core::iter::once(present.policy.name))?;
                slot = &present.next;
                continue;
            }
            match slot.set(entry) {
                Ok(()) => return Ok(()),
                // Another thread has filled the slot: its entry is checked next.
                Err(refused) => entry = refused,
            }
        }
    }

    /// The registered policies, the first one first.
    pub(crate) fn policies(&'static self) -> impl Iterator<Item = &'static Policy> {
        self.entries().map(|entry| &entry.policy)
    }

    /// The constructor of the policy with this name; `None` if none is registered under it.
    pub(crate) fn find(&'static self, name: &str) -> Option<B> {
        self.entries().find(|entry| entry.policy.name == name).map(|entry| entry.build)
    }

    /// Returns the registered policies with their constructors, in order of registration.
    fn entries(&'static self) -> impl Iterator<Item = &'static Entry<B>> {
        core::iter::successors(self.first.get(), |entry| entry.next.get())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use std::thread;

    use super::*;

    const BUILT_IN: [Policy; 1] = [Policy::new("none", "nothing", "")];

    /// Two policies are registered; their names, the name of a built-in policy and malformed names
    /// are then refused.
    #[test]
    fn names_are_checked_and_kept_by_their_first_owner() {
        static REGISTRY: Registry<fn() -> u8> = Registry::new();
        let add = |name, build| REGISTRY.register(Policy::new(name, "", ""), build, &BUILT_IN);
        assert_eq!(add("mine", || 1), Ok(()));
        assert_eq!(add("yours", || 2), Ok(()));
        let taken = |name: &str| Err(RegisterError::NameTaken { name: name.to_owned() });
        assert_eq!(add("mine", || 3), taken("mine"));
        assert_eq!(add("none", || 3), taken("none"));
        for name in ["", "a,b", "a=1", "raid0:ssd", "a b", "ä"] {
            assert_eq!(add(name, || 3), Err(RegisterError::BadName { name: name.to_owned() }));
        }
        assert_eq!(REGISTRY.find("mine").map(|build| build()), Some(1));
        assert_eq!(REGISTRY.find("yours").map(|build| build()), Some(2));
        assert!(REGISTRY.find("none").is_none());
        let names: Vec<&str> = REGISTRY.policies().map(|policy| policy.name).collect();
        assert_eq!(names, ["mine", "yours"]);
    }

    /// Four threads register the same eight names: each name is registered once.
    #[test]
    fn concurrent_registrations_of_one_name_have_one_owner() {
        static REGISTRY: Registry<fn() -> u8> = Registry::new();
        const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let added: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let add = |name| REGISTRY.register(Policy::new(name, "", ""), || 0, &[]);
                        NAMES.into_iter().filter(|name| add(name).is_ok()).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((added, REGISTRY.policies().count()), (8, 8));
    }
}
