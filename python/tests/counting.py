"""A remote storage for fsspec that counts its requests."""

from fsspec.implementations.memory import MemoryFileSystem


class Counting(MemoryFileSystem):
    """Files in memory; counts how often it is asked what one is, and the bytes that are fetched."""

    protocol = "counting"
    cachable = False
    store: dict = {}
    pseudo_dirs = [""]
    asked = 0
    fetched = 0

    def info(self, path, **options):
        self.asked += 1
        return super().info(path, **options)

    def cat_file(self, path, start=None, end=None, **options):
        data = super().cat_file(path, start, end, **options)
        self.fetched += len(data)
        return data
