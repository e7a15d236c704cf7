"""Sweeps: equal rows on every executor, resumable, and unaffected by a failed point."""

import concurrent.futures
import functools
import multiprocessing
import threading

import _thread
import pytest

import readpath
from samples import RANDOM, SEQUENTIAL

GRID = {"devices": "ssd,hdd", "readahead": "none,ondemand", "scheduler": "noop", "seeds": [1, 2]}
JOBS = [SEQUENTIAL, RANDOM]


@pytest.fixture(scope="module")
def expected():
    """The rows of the grid, one at a time, in its order."""
    return [
        readpath.run(job, device, readahead=policy, scheduler="noop", seed=seed)[0]
        for job in JOBS
        for device in ("ssd", "hdd")
        for policy in ("none", "ondemand")
        for seed in (1, 2)
    ]


def plain(sweep):
    """Its rows, without what a sweep adds."""
    assert sweep.failed == []
    added = ("memory_bytes", "seed", "point")
    return [{key: value for key, value in row.items() if key not in added} for row in sweep.rows]


def failing_policy(flag, name):
    """A policy that fails until the file `flag` exists, and creates it."""

    class Failing(readpath.Policy):
        def __init__(self, limits):
            if not flag.exists():
                flag.touch()
                raise ConnectionError("lost")

    Failing.__qualname__ = name
    return Failing


def hopeless_policy():
    """A policy that always fails."""

    class Hopeless(readpath.Policy):
        def read(self, ask, pages):
            raise ArithmeticError("never")

    return Hopeless


def test_grid_runs_in_this_process(expected):
    heard = []
    sweep = readpath.sweep(JOBS, **GRID, on_row=heard.append)
    assert plain(sweep) == expected
    assert len({row["point"] for row in sweep.rows}) == 16
    assert sorted(row["point"] for row in heard) == sorted(row["point"] for row in sweep.rows)
    assert [row["seed"] for row in sweep.rows] == [1, 2] * 8


def test_a_grid_runs_in_other_processes(expected):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as executor:
        assert plain(readpath.sweep(JOBS, **GRID, executor=executor)) == expected


@pytest.fixture(scope="module")
def dask_client():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


def test_a_grid_runs_on_a_dask_cluster_of_two_workers(expected, dask_client, tmp_path):
    heard = []
    sweep = readpath.sweep(
        JOBS, **GRID, executor=dask_client, out=tmp_path / "rows.parquet", on_row=heard.append
    )
    assert plain(sweep) == expected
    assert len(heard) == 16
    assert len(dask_client.scheduler_info()["workers"]) == 2


def test_failed_point_on_dask_is_retried_once(dask_client, tmp_path):
    once = failing_policy(tmp_path / "flag", "Once")
    sweep = readpath.sweep(
        SEQUENTIAL, "ssd", ["none", once, hopeless_policy()], executor=dask_client
    )
    assert [row["readahead"] for row in sweep.rows] == ["none", "Failing"]
    assert [str(failed.error) for failed in sweep.failed] == ["never"]


def test_a_grid_runs_on_ray(expected):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert plain(readpath.sweep(JOBS, **GRID, executor=ray)) == expected
    finally:
        ray.shutdown()


def test_failed_point_is_retried_once_and_then_reported(tmp_path):
    once = failing_policy(tmp_path / "flag", "Once")
    sweep = readpath.sweep(SEQUENTIAL, "ssd", [once, hopeless_policy(), "none"])
    assert [row["readahead"] for row in sweep.rows] == ["Failing", "none"]
    (failed,) = sweep.failed
    assert failed.point.readahead.__name__ == "Hopeless"
    assert str(failed).startswith("job seq, storage ssd, readahead Hopeless, scheduler adaptive")
    assert str(failed).endswith("ArithmeticError: never")


def test_shut_down_executor_is_reported_without_a_hang():
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.shutdown()
    sweep = readpath.sweep(SEQUENTIAL, "ssd", executor=executor)
    assert sweep.rows == [] and len(sweep.failed) == 1
    with pytest.raises(TypeError, match="executor is a int"):
        readpath.sweep(SEQUENTIAL, "ssd", executor=3)


def test_invalid_sweep_input_is_refused_before_any_run(tmp_path):
    heard = []
    with pytest.raises(ValueError, match="there is no device `floppy`"):
        readpath.sweep(JOBS, "ssd,floppy", on_row=heard.append, out=tmp_path / "rows.parquet")
    assert heard == [] and list(tmp_path.iterdir()) == []


def test_sweep_resumes_after_an_abort(expected, tmp_path):
    out = tmp_path / "rows.parquet"

    def break_off(row):
        heard.append(row)
        if len(heard) == 5:
            raise InterruptedError

    heard = []
    with pytest.raises(InterruptedError):
        readpath.sweep(JOBS, **GRID, out=out, on_row=break_off)
    assert len(readpath.parquet.RowFile(out).rows("point")) == 5
    more = []
    sweep = readpath.sweep(JOBS, **GRID, out=out, on_row=more.append)
    assert len(more) == 11
    assert plain(sweep) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    again = readpath.sweep(JOBS, **GRID, out=out, on_row=more.append)
    assert len(more) == 11 and plain(again) == expected


def test_an_interrupt_ends_a_sweep_and_keeps_its_rows(tmp_path):
    out = tmp_path / "rows.parquet"
    hours = readpath.Job.of("hours", rw="randread", bs="4k", size="1g", direct=1, io_size="10t")

    def interrupt(row):
        threading.Timer(0.2, _thread.interrupt_main).start()

    with pytest.raises(KeyboardInterrupt):
        readpath.sweep([SEQUENTIAL, hours], "ssd", out=out, on_row=interrupt)
    assert len(readpath.parquet.RowFile(out).rows("point")) == 1


def test_row_file_has_typed_columns_and_reads_as_a_data_frame(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pandas
    import pyarrow.parquet

    out = tmp_path / "rows.parquet"
    sweep = readpath.sweep(SEQUENTIAL, "ssd", out=out)
    schema = pyarrow.parquet.read_schema(out)
    assert set(schema.names) == set(sweep.rows[0])
    assert not any(pyarrow.types.is_null(field.type) for field in schema)
    assert list(pandas.read_parquet(out)["job"]) == ["seq"]


def test_foreign_row_file_and_missing_folder_are_refused_by_name(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("not rows")
    with pytest.raises(ValueError, match="notes.txt: not a Parquet file"):
        readpath.sweep(SEQUENTIAL, "ssd", out=other)
    assert other.read_text() == "not rows"
    with pytest.raises(FileNotFoundError, match="make it"):
        readpath.sweep(SEQUENTIAL, "ssd", out=tmp_path / "none" / "rows.parquet")


class Blocks(readpath.Policy):
    """Whole blocks of some pages."""

    def __init__(self, limits, count=4):
        super().__init__(limits)
        self.count = count

    def read(self, ask, pages):
        count = self.count
        pages.add_range(ask.first_page // count * count, -(-ask.end_page // count) * count)


def test_policies_without_names_of_their_own_are_points_of_their_own():
    """A file of 2,048 pages in blocks: one request for each block."""
    parts = [functools.partial(Blocks, count=count) for count in (16, 64)]
    policies = [*parts, lambda limits: Blocks(limits, 8), lambda limits: Blocks(limits, 32)]
    sweep = readpath.sweep(SEQUENTIAL, "ssd", policies, "noop")
    assert [row["device_requests"] for row in plain(sweep)] == [128, 32, 256, 64]


def test_row_file_takes_no_policy_without_a_name(tmp_path):
    class Local(Blocks):
        pass

    out = tmp_path / "rows.parquet"
    for policy in (functools.partial(Blocks, count=16), lambda limits: Blocks(limits, 8), Local):
        with pytest.raises(ValueError, match="attribute `name`"):
            readpath.sweep(SEQUENTIAL, "ssd", policy, "noop", out=out)
    assert list(tmp_path.iterdir()) == []
    for count, requests in ((16, 128), (64, 32)):
        named = functools.partial(Blocks, count=count)
        named.name = f"blocks of {count}"
        (row,) = plain(readpath.sweep(SEQUENTIAL, "ssd", named, "noop", out=out))
        assert row["device_requests"] == requests


def test_two_policies_of_one_name_are_refused_before_any_run():
    heard = []
    policies = [functools.partial(Blocks, count=count) for count in (16, 64)]
    for policy in policies:
        policy.name = "blocks"
    with pytest.raises(ValueError, match="two policies named blocks"):
        readpath.sweep(SEQUENTIAL, "ssd", policies, on_row=heard.append)
    assert heard == []
