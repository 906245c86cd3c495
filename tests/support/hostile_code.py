"""User code that means harm, and code that means none, as root and as another user."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534
_C = "import ctypes; c = ctypes.CDLL(None)"
SPIES = {
    "environment": "event.data['x'] = dict(os.environ)",
    "a file": "event.data['x'] = open({file!r}).read()",
    "by its folder": "event.data['x'] = os.listdir(os.path.dirname({file!r}))",
    "by a link": "os.symlink({file!r}, 'l'); event.data['x'] = open('l').read()",
    "the environment of the platform": "event.data['x'] = open('/proc/{pid}/environ').read()",
    "the command of the platform": "event.data['x'] = open('/proc/{pid}/cmdline').read()",
    "memory of the platform": "event.data['x'] = open('/proc/{pid}/mem', 'rb').read(10)",
    "files of the platform": "event.data['x'] = os.listdir('/proc/{pid}/fd')",
    "its own memory map": "event.data['x'] = open('/proc/self/maps').read()",
    "ptrace": "import ctypes; l = ctypes.CDLL(None, use_errno=True); "
    "assert l.ptrace(16, {pid}, 0, 0) == 0",
    "process_vm_readv": "import ctypes; assert ctypes.CDLL(None).syscall(310, {pid}, 0, 0, 0, 0, 0) == 0",
    "TCP": "import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
    "UDP": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "a raw socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "a signal": "os.kill({pid}, 0)",
    "a signal to all": "os.kill(-1, 0)",
    "its server": "os.kill(os.getppid(), 0)",
    "a process": "os.fork()",
    "a command": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "exec": "os.execv('/bin/true', ['true'])",
    "a file elsewhere": "open({file!r} + '.spy', 'w')",
    "a file in Waybill": "import waybill.errors as e; open(e.__file__, 'a')",
    "a pid namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "a limit of others": "import resource; resource.prlimit({pid}, resource.RLIMIT_CORE)",
    "its own limit": "import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))",
    "root": "os.setuid(0)",
    "a mode": "open('own', 'w').close(); os.chmod('own', 0o600)",
    "a mode of the platform's": "os.chmod({file!r}, 0o777)",
    "a mode by descriptor": "os.fchmod(os.open('own', os.O_CREAT), 0o600)",
    "times": "open('own', 'w').close(); os.utime('own')",
    "times of the platform's": "os.utime({file!r})",
    "times by descriptor": "os.utime(os.open('own', os.O_CREAT))",
    "an owner": "open('own', 'w').close(); os.chown('own', -1, os.getgid())",
    "an owner by descriptor": "os.fchown(os.open('own', os.O_CREAT), -1, os.getgid())",
    "an attribute": "open('own', 'w').close(); os.setxattr('own', 'user.x', b'')",
    "a length": "open('own', 'w').close(); os.truncate('own', 0)",
    "room for a file": f"{_C}; assert c.fallocate(os.open('own', os.O_CREAT | os.O_RDWR), 1, ctypes.c_long(0), ctypes.c_long(2**20)) == 0",
    "shared memory": "import mmap; mmap.mmap(-1, 4096)",
    "memory that grows down": "import mmap; mmap.mmap(-1, 4096, flags=0x122)",
    "memory of a device": "open('/dev/zero', 'r+b', 0)",
    "a file in memory": "os.memfd_create('x')",
    "shared memory of others": f"{_C}; assert c.shmctl(0, 14, bytes(200)) >= 0",
    "semaphores of others": f"{_C}; assert c.semctl(0, 0, 19, bytes(200)) >= 0",
    "messages of others": f"{_C}; assert c.msgctl(0, 12, bytes(200)) >= 0",
    "a signal by a pipe": "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {pid})",
    "a signal by a pipe to a thread": "import fcntl; fcntl.fcntl(os.pipe()[0], 15, int(1).to_bytes(4, 'little') + ({pid}).to_bytes(4, 'little'))",
    "which signal": "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETSIG, 9)",
    "when a signal": "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETFL, 0x2000)",
    "when a signal, otherwise": "import fcntl; fcntl.ioctl(os.pipe()[0], 0x5452, bytes([1, 0, 0, 0]))",
    "whose signal": "import fcntl, socket; fcntl.ioctl(socket.socketpair()[0], 0x8901, bytes([1, 0, 0, 0]))",
    "a lease": "import fcntl; fcntl.fcntl(os.open('own', os.O_CREAT), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "a signal by a timer": f"{_C}; assert c.timer_create(1, None, bytes(8)) == 0",
    "a local datagram": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a file on its way": "import socket; a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])",
    "files of one thread": f"{_C}; assert c.close_range(900, 901, 2) == 0",
    "a life after its server's": f"{_C}; assert c.prctl(1, 0, 0, 0, 0) == 0",
    "a process that nobody looks at": f"{_C}; assert c.prctl(4, 0, 0, 0, 0) == 0",
    "a watch": f"{_C}; assert c.inotify_init1(0) >= 0",
}
"""Bodies of transformations that reach for what is not theirs: none may come to its end. To be
formatted: ``file``, ``pid``, ``port`` of the platform's."""

HOGS = {
    "unlinked files":
    "kept = globals().setdefault('KEPT', [])\n"
    "        for i in range(20):\n"
    "            kept.append(open('x', 'wb', 0)); kept[-1].write(bytes(2**20)); os.unlink('x')",
    "unlinked files that are mapped":
    "import mmap; kept = globals().setdefault('KEPT', [])\n"
    "        for i in range(20):\n"
    "            with open('x', 'w+b', 0) as f:\n"
    "                f.write(bytes(2**20)); kept.append(mmap.mmap(f.fileno(), 2**20, access=mmap.ACCESS_READ))\n"
    "            os.unlink('x')\n"
    "        os.closerange(6, 200)",
    "files in deep folders":
    "for i in range(40): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
    "        for i in range(20): open(f'{i}', 'wb').write(bytes(2**20))",
    "files in a folder that nobody may list":
    "os.mkdir('d', 0o300); os.chdir('d')\n"
    "        for i in range(20): open(f'{i}', 'wb').write(bytes(2**20))",
    "memory that is written once":
    "import ctypes, mmap; kept = globals().setdefault('KEPT', [])\n"
    "        for i in range(12):\n"
    "            m = mmap.mmap(-1, 2**25, flags=0x22); kept.append(m)\n"
    "            at = ctypes.addressof(ctypes.c_char.from_buffer(m)); ctypes.memset(at, 1, 2**25)\n"
    "            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), 2**25, 1) == 0",
    "page tables of memory that is only read":
    "import mmap; m = mmap.mmap(-1, 2**37, flags=0x22, prot=mmap.PROT_READ); globals()['KEPT'] = m; m[::2**21]",
    "threads":
    "import threading; threading.stack_size(32768)\n"
    "        for i in range(600): threading.Thread(target=time.sleep, args=(90,), daemon=True).start()",
}  # fmt: skip
"""What uses more than its share at event 1, and then waits: for longer than who looks at it takes."""
HOGS = {name: f"if n == 1:\n        {body}\n        time.sleep(90)" for name, body in HOGS.items()}


USES = {
    "temporary files":
    "import tempfile\n"
    "    with tempfile.TemporaryDirectory() as d:\n"
    "        os.makedirs(d + '/a/b'); open(d + '/a/b/c', 'w').write('x'); os.rename(d + '/a', d + '/e')\n"
    "    with tempfile.NamedTemporaryFile() as f, tempfile.TemporaryFile() as g:\n"
    "        f.write(b'x'); f.truncate(0); g.write(bytes(2**20)); g.flush()\n"
    "    with tempfile.SpooledTemporaryFile(max_size=9) as f: f.write(bytes(99))",
    "files that are mapped":
    "import mmap\n"
    "    with open('m', 'w+b') as f:\n"
    "        f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); m[0:1] = b'x'; m.flush(); m.close()\n"
    "    os.unlink('m')",
    "room for a file":
    "with open('r', 'w+b') as f: os.posix_fallocate(f.fileno(), 0, 2**20)\n"
    "    assert os.stat('r').st_size == 2**20; os.unlink('r')",
    "archives":
    "import gzip, shutil, tarfile, zipfile; open('in', 'w').write('x'); shutil.copyfile('in', 'out')\n"
    "    with tarfile.open('t', 'w:gz') as t: t.add('in')\n"
    "    with tarfile.open('t') as t: t.extractall('of_t')\n"
    "    with zipfile.ZipFile('z', 'w') as z: z.write('in')\n"
    "    with zipfile.ZipFile('z') as z: z.extractall('of_z')\n"
    "    assert open('of_t/in').read() == open('of_z/in').read() == 'x'; shutil.rmtree('of_t')",
    "a database":
    "import sqlite3\n"
    "    with sqlite3.connect('db') as c: c.execute('create table if not exists t (a)'); c.execute('insert into t values (1)')",
    "threads":
    "import concurrent.futures as f\n"
    "    with f.ThreadPoolExecutor(16) as pool: assert sum(pool.map(abs, range(100))) == 4950",
    "asyncio":
    "import asyncio\n"
    "    async def main():\n"
    "        await asyncio.gather(asyncio.sleep(0.01), asyncio.to_thread(time.sleep, 0.01))\n"
    "    asyncio.run(main())",
    "time zones":
    "import zoneinfo, datetime; datetime.datetime.now(zoneinfo.ZoneInfo('Europe/Berlin'))",
    "numpy":
    "import numpy as np; a = np.ones((500, 500)); (a @ a).sum()\n"
    "    m = np.memmap('n', dtype='u1', mode='w+', shape=(4096,)); m[:] = 1; m.flush(); np.save('s', a); np.load('s.npy', mmap_mode='r').sum()",
    "Arrow":
    "import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq\n"
    "    t = pa.table({'a': list(range(10_000))}); pq.write_table(t, 'p'); assert pq.read_table('p', memory_map=True).equals(t)\n"
    "    assert pc.sum(t['a']).as_py() == 49_995_000",
    "pandas":
    "import pandas as pd; pd.DataFrame({'a': [1, 2]}).to_csv('c'); assert pd.read_csv('c')['a'].sum() == 3",
}  # fmt: skip
"""What code may do, in its own folder and memory."""


def as_nobody() -> dict[str, list[str | None]]:
    """Return the error types of each spy and use, and of each hog and its neighbours, by name.

    None: it came to its end.

    Skips where this is root, and no Python that others may use has what Waybill needs.
    """
    pythons = [sys.executable, shutil.which("python3.11", path="/usr/bin:/usr/local/bin") or ""]
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    paths = [str(ROOT), str(ROOT / "include"), *(p for p in sys.path if p.endswith("-packages"))]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PATH": "/usr/bin:/bin"}
    for python in filter(None, pythons):
        try:
            subprocess.run(
                [python, "-c", "import pytest, waybill"],
                env=environment,
                cwd="/",
                check=True,
                **user,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        done = subprocess.run(
            [python, "-m", __name__], env=environment, cwd=ROOT, capture_output=True, check=False,
            timeout=1200, **user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)
    pytest.skip("no Python here that another user than root may run")


def _main() -> None:
    """Run all as the user that this process has, and print what became of them."""
    from tests.support.user_code import sandbox
    from tests.unit.processing.test_sandbox import code_of, codes, ran

    from waybill.processing.sandbox import Sandbox
    from waybill.settings import SandboxSettings

    found: dict[str, list[str | None]] = {}
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        file = Path(folder) / "stack.env"
        file.write_text("canary")
        names = {"file": str(file), "pid": os.getpid(), "port": server.getsockname()[1]}
        box = Sandbox(SandboxSettings(file_mb=4, memory_mb=128), timeout_s=100)
        for name, spy in SPIES.items():
            [(_, _, fault)] = ran(code_of(spy.format(**names)), 1, box)
            found[name] = [fault and fault.code]
        for name, hog in HOGS.items():
            found[name] = codes(hog, 3, box)
        for name, use in USES.items():
            found[f"use: {name}"] = codes(use, 1, sandbox())
        box.close()
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
