//! Memory that the cache needs per page for its bookkeeping, under each eviction policy. The
//! benchmark reads at random in four times as many pages as the cache has frames. The result is the
//! peak memory of an iteration divided by the number of frames.

use divan::Bencher;
use divan::counter::ItemsCount;
use readpath_core::cache::{Cache, Mark};
use readpath_core::policy::Spec;
use readpath_core::readahead::Folio;
use readpath_core::{eviction, splitmix};

use crate::sized;

#[divan::bench(args = eviction::POLICIES.iter().map(|policy| policy.name), sample_count = 1)]
fn bookkeeping(bencher: Bencher, policy: &str) {
    let pages = sized(1 << 16).max(64);
    bencher.counter(ItemsCount::new(4 * pages)).bench(|| {
        let policy = eviction::build(&Spec::plain(policy), pages as u32).expect("one of the list");
        let mut cache = Cache::new(pages as u32, policy);
        let file = cache.add_file();
        let mut state = 7;
        for _ in 0..4 * pages {
            let page = splitmix::next(&mut state) % (4 * pages);
            let frame = cache.find(file, page).unwrap_or_else(|| {
                let folio = Folio::holding(page, 0);
                let added = cache.add(file, page, folio, Mark::Clear, false);
                let frame = added.expect("nothing is pinned");
                cache.fill(frame);
                frame
            });
            cache.touch(frame);
        }
        cache
    });
}
