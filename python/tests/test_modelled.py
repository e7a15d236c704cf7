"""Simulation runs: rows and errors are equal to the command's."""

import _thread
import json
import threading

import pytest

import readpath
from samples import MAPPED, RANDOM, SEQUENTIAL


def test_run_rows_equal_those_of_the_command(command, root):
    job = root / "examples/quickstart.fio"
    policies = {"readahead": "none,ondemand,read_ahead_kb=64", "scheduler": "noop,cfq,slice_idle=0"}
    rows = readpath.run(job, "hdd,ssd", **policies, memory="64MiB", seed=7)
    options = [f"--{kind}={policy}" for kind, policy in policies.items()]
    options += ["--on=hdd,ssd", "--memory=64MiB", "--seed=7", "--json"]
    document = json.loads(command("run", str(job), *options).stdout)
    assert len(rows) == 8
    assert rows == document["results"]
    assert document["readpath"] == readpath.__version__


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("on", "floppy"),
        ("on", "ssd,rpm=7200"),
        ("on", "ssd,size=1m"),
        ("readahead", "psychic"),
        ("readahead", "ondemand,read_ahead_kb=many"),
        ("scheduler", "cfq,qantum=3"),
        ("scheduler", ""),
    ],
)
def test_run_errors_equal_those_of_the_command(command, root, option, value):
    job = str(root / "examples/quickstart.fio")
    told = command("run", job, f"--{option}={value}")
    assert told.returncode == 2
    with pytest.raises(ValueError) as raised:
        readpath.run(job, **{option: value})
    assert told.stderr == f"readpath: {raised.value}\n"


@pytest.mark.parametrize(
    "text", ["[a]\nrw=read\nsize=1x\n", "[a]\nbs=4y\n", "", "[a]\nrw=read\nsize=4k\nbs=8k\n"]
)
def test_invalid_job_file_error_names_file_and_line(command, tmp_path, text):
    path = tmp_path / "wrong.fio"
    path.write_text(text)
    told = command("run", str(path))
    with pytest.raises(ValueError) as raised:
        readpath.run(path)
    assert told.stderr == f"readpath: {raised.value}\n"


def test_missing_job_file_raises_file_not_found():
    with pytest.raises(FileNotFoundError):
        readpath.run("nowhere.fio")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a]\nrw=randread\n[b", {"rw": "read"}),
        ("a]b", {"rw": "read"}),
        ("a", {"rw": "read\nbs=4k"}),
        ("a", {"rw": "read\r"}),
    ],
)
def test_job_of_refuses_names_and_values_that_end_their_line(name, options):
    with pytest.raises(ValueError, match="lines|brackets"):
        readpath.Job.of(name, **options)


def test_job_file_that_is_no_text_is_refused_by_its_name(tmp_path):
    path = tmp_path / "binary.fio"
    path.write_bytes(b"[a]\nrw=read\nfilename=\xff\n")
    with pytest.raises(ValueError, match="binary.fio: it is no text"):
        readpath.run(path, "hdd")


def test_invalid_memory_sizes_are_refused():
    for memory, words in [
        ("much", "a size such as 64KiB"),
        (4095, "at least 4096 bytes"),
        ("16PiB", "expected a size"),
        ("900TiB", "don't fit into this machine"),
        ("32KiB", "reads 65536 bytes at once"),
    ]:
        with pytest.raises(ValueError, match=words):
            readpath.run(RANDOM, memory=memory)


def test_invalid_point_prevents_every_run():
    policy_was_made = []

    def policy(limits):
        policy_was_made.append(limits)
        return readpath.Policy(limits)

    with pytest.raises(ValueError, match="floppy"):
        readpath.run(SEQUENTIAL, ["ssd", "floppy"], readahead=policy)
    assert policy_was_made == []


def test_seed_determines_the_run():
    one, same, other = [readpath.run(RANDOM, "hdd", seed=seed)[0] for seed in (1, 1, 2)]
    assert one == same
    assert one["decisions"] != other["decisions"]


def test_other_python_threads_run_during_a_simulation():
    """With Python's lock held, this thread would not come to count."""
    job = readpath.Job.of(rw="randread", bs="4k", size="1g", direct=1, io_size="512m")
    thread = threading.Thread(target=readpath.run, args=(job, "ssd"))
    thread.start()
    counted = 0
    while thread.is_alive():
        counted += 1
    assert counted > 10_000


def test_an_interrupt_ends_a_run():
    hours = readpath.Job.of(rw="randread", bs="4k", size="1g", direct=1, io_size="10t")
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        readpath.run(hours, "ssd")


def test_progress_is_reported_and_a_callback_exception_ends_the_run():
    told = []
    point = readpath.Point(readpath.Job.of(rw="read", bs="4k", size="256m"), "ssd")
    row = point.run(tell=lambda *progress: told.append(progress))
    assert [total for _, _, total in told] == [256 << 20] * len(told)
    assert 0 < told[0][1] < told[-1][1] <= row["bytes"] == 256 << 20

    def refuse(*progress):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        point.run(tell=refuse)


def test_trace_events_sum_to_the_row():
    trace = readpath.trace(SEQUENTIAL, "ssd", readahead="none")
    # 8 MiB in reads of 16 KiB, each a request of 32 sectors.
    assert trace.reads["offset"] == [nth * 16_384 for nth in range(512)]
    assert trace.requests["sectors"] == [32] * 512
    assert trace.windows["ahead_pages"] == [0] * 512
    assert trace.row == readpath.run(SEQUENTIAL, "ssd", readahead="none")[0]
    assert readpath.trace(SEQUENTIAL, "ssd", events_max=10).dropped > 500


def test_rows_convert_to_a_data_frame():
    pytest.importorskip("pandas")
    rows = readpath.run(MAPPED, "ssd", readahead="none,ondemand")
    frame = readpath.frame(rows)
    assert list(frame["readahead"]) == ["none", "ondemand"]
    assert frame["latency_us.p50"][0] == rows[0]["latency_us"]["p50"]


def test_policies_and_devices_can_be_listed():
    assert {"none", "ondemand", "window"} <= readpath.policies().keys()
    assert "cfq" in readpath.policies("scheduler")
    assert {"hdd", "nvme"} <= readpath.devices().keys()
    with pytest.raises(ValueError, match="there are: readahead, scheduler, eviction"):
        readpath.policies("swap")
