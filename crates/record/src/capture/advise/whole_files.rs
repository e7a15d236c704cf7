//! Prefetch of the files that the program uses up, chunk by chunk.
//!
//! The *room* is the number of pages that still fit into the budget. The *credit* is the number of
//! pages that may still be prefetched, by the use of the ones before.

use super::super::event::Inode;
use super::used_up::ChunkLimits;
use super::worth::{AdviceState, PrefetchReason};
use super::{AWAKE_NS, Advisor};

impl Advisor {
    /// Prefetches the next chunks of files that are read once, in pieces, if the advice is on.
    /// After the advice is turned on, events are processed at once for `AWAKE_NS`, as after a
    /// useful prefetch.
    pub fn continue_whole_files(&mut self, at_ns: u64) {
        let had_advised = self.has_advised;
        self.has_advised = self.credit.state_at(at_ns) == AdviceState::Advise;
        if !self.has_advised {
            return;
        }
        if !had_advised {
            self.awake_until_ns = at_ns + AWAKE_NS;
        }
        for inode in self.files.keys().copied().collect::<Vec<Inode>>() {
            self.prefetch_next_chunk(inode, at_ns);
        }
    }

    /// Prefetches the next chunk of a file that is read once, in pieces, within budget and credit.
    /// Without a due chunk only a lack of credit is recorded.
    fn prefetch_next_chunk(&mut self, inode: Inode, at_ns: u64) {
        // Chunks of which nothing is prefetched are skipped: all pages are present, or the kernel
        // refuses. The loop ends at the end of the file at latest.
        loop {
            let room_pages = self.budget_pages.saturating_sub(self.ledger.pages());
            let Some(file) = self.files.get_mut(&inode) else { return };
            let estimate = &self.devices.entry(file.disk).or_default().evidence.estimate;
            let page_ps = estimate.page_ps();
            let credit_pages = self.credit.available_pages(PrefetchReason::WholeFile, page_ps);
            let limits = ChunkLimits { room_pages, credit_pages };
            let is_read = |page| file.advice_target.is_read(page);
            let chunk = file.file_use.next_chunk(estimate, limits, at_ns, is_read);
            if file.file_use.lacks_credit(credit_pages) {
                self.credit.record_credit_refusal();
            }
            let Some(chunk) = chunk else { return };
            // Found before the prefetch, after which no page is absent. The next chunk is due when
            // this page has been read.
            let middle_page = file.advice_target.middle_absent_page(chunk);
            let prefetched_pages = self.prefetch(inode, chunk, PrefetchReason::WholeFile, at_ns);
            let Some(file) = self.files.get_mut(&inode).filter(|_| prefetched_pages > 0) else {
                continue;
            };
            let estimate = &self.devices.entry(file.disk).or_default().evidence.estimate;
            file.file_use.record_prefetched(prefetched_pages, middle_page, estimate, at_ns);
            self.awake_until_ns = at_ns + AWAKE_NS;
            return;
        }
    }
}
