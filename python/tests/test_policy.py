"""Readahead policies written in Python: they decide as their like in Rust, and can't break a run."""

import concurrent.futures

import pytest

import readpath
from samples import MAPPED, RANDOM, SEQUENTIAL


class Nothing(readpath.Policy):
    name = "nothing"


class Delegated(readpath.Policy):
    """One of our own policies, each call through Python."""

    spec = "ondemand"

    def __init__(self, limits):
        self.policy = readpath.NamedPolicy(self.spec, limits)

    def read(self, ask, pages):
        self.policy.read(ask, pages)

    def fault(self, page, ask, pages):
        self.policy.fault(page, ask, pages)

    def advise(self, advice):
        self.policy.advise(advice)


class Blocks(readpath.Policy):
    """Whole blocks of 16 pages, whatever is asked."""

    def read(self, ask, pages):
        pages.add_range(ask.first_page // 16 * 16, -(-ask.end_page // 16) * 16)


def decisions(job, device, policy):
    return readpath.run(job, device, readahead=policy)[0]["decisions"]


@pytest.mark.parametrize("job", [SEQUENTIAL, RANDOM, MAPPED], ids=lambda job: job.name)
@pytest.mark.parametrize("device", ["hdd", "nvme", "nfs"])
def test_python_policy_decides_like_its_rust_counterpart(job, device):
    assert decisions(job, device, Nothing) == decisions(job, device, "none")
    assert decisions(job, device, Delegated) == decisions(job, device, "ondemand")


def test_custom_policy_reads_exactly_its_requested_pages():
    """512 reads of 4 pages in blocks of 16 pages: 128 requests of 64 KiB, each by one read."""
    row = readpath.run(SEQUENTIAL, "ssd", readahead=Blocks)[0]
    assert row["readahead"] == "Blocks"
    assert (row["device_requests"], row["device_request_kib_mean"]) == (128, 64.0)
    assert (row["coverage"], row["amplification"]) == (0.75, 1.0)


def test_open_files_have_separate_policies():
    made = []

    class Counted(readpath.Policy):
        def __init__(self, limits):
            made.append(limits.window_pages_max)

    job = readpath.Job.of(rw="read", size="1m", numjobs=3)
    readpath.run(job, "ssd", readahead=Counted)
    assert made == [32, 32, 32]


def test_policy_receives_reads_faults_and_hints():
    heard = []

    class Listening(readpath.Policy):
        def read(self, ask, pages):
            heard.append(("read", ask.offset, ask.bytes, ask.file_bytes, ask.is_congested))

        def fault(self, page, ask, pages):
            heard.append(("fault", page, pages.file_pages))

        def advise(self, advice):
            heard.append(advice)

    readpath.run(readpath.Job.of(rw="read", bs="4k", size="8k"), "ssd", readahead=Listening)
    readpath.run(
        readpath.Job.of(rw="read", bs="4k", size="8k", ioengine="mmap"), "ssd", readahead=Listening
    )
    reads = [("read", 0, 4096, 8192, False), ("read", 4096, 4096, 8192, False)]
    assert heard == ["dontneed", "sequential", *reads, "dontneed", "sequential"] + [
        ("fault", 0, 2),
        ("fault", 1, 2),
    ]


def test_page_marks_can_be_set_found_and_cleared():
    seen = []

    class Marking(readpath.Policy):
        def read(self, ask, pages):
            if ask.offset == 0:
                assert pages.add(8, order=2, marked=True)
                seen.append([pages.is_cached(page) for page in (7, 8, 11, 12)])
                seen.append((pages.marked(10), pages.folio(11), pages.marked(0)))
                pages.clear_mark(9)
                seen.append(pages.marked(10))

    readpath.run(readpath.Job.of(rw="read", bs="4k", size="1m"), "ssd", readahead=Marking)
    assert seen == [[False, True, True, False], ((8, 2), (8, 2), None), None]


@pytest.mark.parametrize("method", ["__init__", "read", "advise"])
def test_policy_exception_ends_the_run_and_is_raised(method):
    def fail(self, *arguments):
        raise ZeroDivisionError(method)

    policy = type("Failing", (readpath.Policy,), {method: fail})
    with pytest.raises(ZeroDivisionError, match=method):
        readpath.run(SEQUENTIAL, "ssd", readahead=policy)


def test_pages_are_usable_only_during_the_call():
    kept = []

    class Keeping(readpath.Policy):
        def read(self, ask, pages):
            kept.append(pages)

    readpath.run(SEQUENTIAL, "ssd", readahead=Keeping)
    with pytest.raises(RuntimeError, match="only during the call"):
        kept[0].is_cached(0)


def test_pages_stay_on_the_thread_of_the_policy():
    class Sharing(readpath.Policy):
        def read(self, ask, pages):
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                threads.submit(pages.is_cached, 0).result()

    with pytest.raises(RuntimeError, match="use them there"):
        readpath.run(SEQUENTIAL, "ssd", readahead=Sharing)


@pytest.mark.parametrize(
    ("folio", "words"),
    [
        ((0, 1), "cached already"),
        ((9, 1), "does not begin a folio"),
        ((0, 10), "the largest is 9"),
        ((2048, 0), "a file of 2048 pages"),
    ],
)
def test_invalid_folios_are_refused(folio, words):
    class Adding(readpath.Policy):
        def read(self, ask, pages):
            if not pages.is_cached(1):
                pages.add(1)
            pages.add(*folio)

    with pytest.raises(ValueError, match=words):
        readpath.run(SEQUENTIAL, "ssd", readahead=Adding)


def test_readahead_is_refused_when_memory_is_short():
    answers = []

    class Greedy(readpath.Policy):
        def read(self, ask, pages):
            answers.append(pages.add_range(ask.end_page, pages.file_pages))

    row = readpath.run(SEQUENTIAL, "ssd", readahead=Greedy, memory="64KiB")[0]
    assert row["errors"] == 0 and row["bytes"] == 8 << 20
    assert answers[0] is False


def test_unknown_or_splitting_named_policy_is_refused():
    with pytest.raises(ValueError, match="there is no readahead policy `psychic`"):
        readpath.NamedPolicy("psychic", readpath.Limits())
    with pytest.raises(ValueError, match="splits what was asked"):
        readpath.NamedPolicy("window", readpath.Limits())
    with pytest.raises(ValueError, match="there are: normal, sequential"):
        readpath.NamedPolicy("ondemand", readpath.Limits()).advise("hurry")
