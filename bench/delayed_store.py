#!/usr/bin/env python3
"""A local HTTP store that waits before each answer, as a remote store does.

    python bench/delayed_store.py FILE_OR_FOLDER DELAY_MS

Serves `/data`, the bytes of the file, or the files of the folder by their names, on a free port of
the loopback address, and prints the URL as one line. Answers ranges (RFC 9110, one range a request),
with an ETag from length and time. Bytes go from the file to the socket within the kernel, so the
store costs little processor time. It ends with its standard input, and thus never outlives its
parent.
"""

import contextlib
import http.server
import os
import re
import stat
import subprocess
import sys
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self):
        self.answer(is_head=True)

    def do_GET(self):
        self.answer(is_head=False)

    def answer(self, is_head):
        time.sleep(self.server.delay_seconds)
        try:
            file, size, tag = self.server.opened(self.path)
        except OSError:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, size
        if asked and (asked[1] or asked[2]):
            if asked[1]:
                start = int(asked[1])
                end = min(size, int(asked[2]) + 1) if asked[2] else size
            else:
                start = max(0, size - int(asked[2]))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(max(0, end - start)))
        self.end_headers()
        if not is_head:
            self.wfile.flush()
            while start < end:
                start += os.sendfile(self.connection.fileno(), file, start, end - start)

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def opened(self, path):
        """Descriptor, size and ETag of the file of a URL's path."""
        name = self.root if os.path.isfile(self.root) and path == "/data" else self.root + path
        with self.lock:
            if name not in self.files:
                file = os.open(name, os.O_RDONLY)
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    os.close(file)
                    raise IsADirectoryError(name)
                self.files[name] = file, status.st_size, f'"{status.st_size:x}-{status.st_mtime_ns:x}"'
            return self.files[name]

    def handle_error(self, request, client_address):
        pass  # a client that goes away is no error


def main(path, delay_ms):
    server = Server(("127.0.0.1", 0), Handler)
    server.root, server.files, server.lock = path, {}, threading.Lock()
    server.delay_seconds = delay_ms / 1e3
    name = "data" if os.path.isfile(path) else ""
    print(f"http://127.0.0.1:{server.server_port}/{name}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


@contextlib.contextmanager
def running(path, delay_ms):
    """Runs a store in a process of its own; returns its URL."""
    command = [sys.executable, __file__, str(path), str(delay_ms)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
