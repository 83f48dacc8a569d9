"""First code of launcher.pyz: unpacks the launcher into a private folder, once, and runs it from there.

Other programs (mpirun, sshd, the Pythons of a job) start files of the launcher, so it has to be in a folder.
That is named by the hash of its content, and belongs to this user alone:

    $XDG_CACHE_HOME, ~/.cache, $TMPDIR, /tmp, /var/tmp or /dev/shm, the first that can be used
        launcher-pyz-UID/    mode 0700; launcher-pyz-UID-RANDOM if others have taken that name everywhere
            HASH/            complete from the moment that it has this name

An older Python must be able to read this file, to say that it is too old: no annotations, no f-strings.
"""

import errno
import os
import stat
import sys

HASH = "@HASH@"
FILES = int("@FILES@")
OLDEST = (3, 10)
NEWEST_TRIED = 20
NOT_HERE, NOT_READY = 69, 75
LIST = "files.txt"
"""In the folder: a line for each other file, with its size and its path."""
SYSTEM = ("/tmp", "/var/tmp", "/dev/shm")
"""Places that no variable names."""
UNMAPPED = 65534
"""Owner of root's folders in a container without root, and of those of all other users outside."""
WHOLE = "0 4294967295"
"""What /proc/self/uid_map ends with where all users are mapped."""


def refuse(status, code, what, source, fix):
    """Print an error in the launcher's form and exit."""
    sys.stderr.write(
        "launcher: error: [%s] %s\nlauncher:   from: %s\nlauncher:   fix:  %s\n" % (code, what, source, fix)
    )
    sys.stderr.flush()
    os._exit(status)


def refuse_python():
    """Say that this Python is too old, and which one on PATH is not."""
    here = "%r is Python %d.%d" % (sys.executable, sys.version_info[0], sys.version_info[1])
    oldest = "%d.%d" % OLDEST
    names = ["python3.%d" % minor for minor in range(NEWEST_TRIED, OLDEST[1] - 1, -1)]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(folder, name) for name in names for folder in folders]
    found = [path for path in paths if os.access(path, os.X_OK) and runs(path)]
    fix = (
        "%r %s ..." % (found[0], sys.argv[0])
        if found
        else "install a newer Python, or take an image that has one"
    )
    refuse(
        NOT_HERE,
        "old-python",
        "%s: expected %s or newer" % (here, oldest),
        "the Python that runs this file",
        fix,
    )


def runs(path):
    """Whether a Python runs: a shim of pyenv may stand for one that is not installed."""
    import subprocess

    with open(os.devnull, "w") as nothing:
        try:
            return subprocess.call([path, "-I", "-S", "-c", ""], stdout=nothing, stderr=nothing) == 0
        except OSError:
            return False


def find_places():
    """Return the folders that the user's variables name, in order of preference."""
    named = [os.environ.get("XDG_CACHE_HOME", "")]
    home = os.environ.get("HOME", "")
    named += [os.path.join(home, ".cache")] if home else []
    named += [os.environ.get("TMPDIR", "")]
    return [place for place in named if os.path.isabs(place)]


def is_safe(place, trusted):
    """Whether no other user can replace what we make in a folder: it and all above it are ours or root's."""
    seen = os.stat(place)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in trusted:
        return False
    if seen.st_mode & 0o022 and not seen.st_mode & stat.S_ISVTX:
        return False
    above = os.path.dirname(place)
    return above == place or is_safe(above, trusted)


def is_mapped():
    """Whether all users are seen with their own numbers here."""
    try:
        with open("/proc/self/uid_map") as lines:
            return " ".join(lines.read().split()[1:]) == WHOLE
    except OSError:
        return True


def find_trusted():
    """Return the users whose folders are safe: root and ourselves, unless all other users look like us."""
    return {0, os.geteuid()} - (set() if is_mapped() else {UNMAPPED})


def is_ours(folder):
    """Whether a folder is one, is no link, and only we can write in it."""
    seen = os.lstat(folder)
    mine = seen.st_uid == os.geteuid() and seen.st_uid in find_trusted()
    return stat.S_ISDIR(seen.st_mode) and mine and not seen.st_mode & 0o022


def use(place, trusted, is_last=False):
    """Return the folder with the launcher, below a place; unpack it unless it is there.

    trusted: users to whom the place may belong, and all above it; is_last: use a name that nobody can guess.

    Raises:
        OSError: The place cannot be used.
    """
    above, name = os.path.split(place)
    above = os.path.realpath(above)
    if name == ".cache" and not os.path.isdir(place) and is_safe(above, trusted):
        os.mkdir(os.path.join(above, name), 0o700)
    place = os.path.realpath(place)  # a link cannot be changed between this look and the use
    if not is_safe(place, trusted):
        raise OSError(errno.EPERM, "other users can change it")
    own = os.path.join(place, "launcher-pyz-%d" % os.geteuid())
    if is_last:
        own = find_last(own)
    elif not os.path.lexists(own):
        try:
            os.mkdir(own, 0o700)
        except FileExistsError:
            pass  # by another process of the job
    if not is_last and not is_ours(own):
        raise OSError(errno.EPERM, "%r is not a folder of this user alone" % own)
    folder = os.path.join(own, HASH)
    if not is_whole(folder):
        unpack(own, folder)
    return folder


def find_last(own):
    """Return the folder of an earlier start with a random name, or a new one."""
    import tempfile

    place, name = os.path.split(own)
    for other in sorted(os.listdir(place)):
        if other.startswith(name + "-") and is_ours(os.path.join(place, other)):
            return os.path.join(place, other)
    return tempfile.mkdtemp(prefix=name + "-", dir=place)


def is_whole(folder):
    """Whether all files are there: programs that clean up temporary directorys remove some of them."""
    try:
        with open(os.path.join(folder, LIST)) as lines:
            listed = [line.rstrip("\n").partition(" ") for line in lines]
        same = [os.stat(os.path.join(folder, name)).st_size == int(size) for size, _, name in listed]
    except (OSError, ValueError):
        return False
    return len(same) == FILES and all(same)


def unpack(own, folder):
    """Unpack the launcher beside the folder and give it its name; of one that exists, replace the files."""
    import hashlib
    import io
    import shutil
    import tempfile
    import zipfile

    data = __loader__.get_data(os.path.join(sys.path[0], "payload.zip"))
    if hashlib.sha256(data).hexdigest()[: len(HASH)] != HASH:
        refuse(
            NOT_READY,
            "broken-file",
            "its content is not what was built",
            repr(sys.argv[0]),
            "download it again",
        )
    umask = os.umask(0o077)
    new = tempfile.mkdtemp(prefix="new-", dir=own)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(new)
        try:
            os.rename(new, folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if not is_whole(folder):
                mend(new, folder)
    finally:
        os.umask(umask)
        shutil.rmtree(new, ignore_errors=True)


def mend(new, folder):
    """Move all files of a new folder into one that lacks some; a reader sees the old file or the new one."""
    for path, _, names in os.walk(new):
        inside = os.path.join(folder, os.path.relpath(path, new))
        os.makedirs(inside, exist_ok=True)
        for name in names:
            os.replace(os.path.join(path, name), os.path.join(inside, name))


def main():
    """Find the folder and run the launcher."""
    home = os.path.dirname(os.__file__)
    # Python's own modules before those of PYTHONPATH
    sys.path[1:] = sorted(
        sys.path[1:], key=lambda folder: folder != home and not folder.endswith("/lib-dynload")
    )
    said = []
    choices = [(place, find_trusted()) for place in find_places()]
    system = [(place, find_trusted() | (set() if is_mapped() else {UNMAPPED})) for place in SYSTEM]
    last = [(place, trusted, True) for place, trusted in system]
    for choice in choices + system + last:
        place = choice[0]
        try:
            folder = use(*choice)
        except OSError as error:
            said.append("%s (%s)" % (place, error.strerror))
            continue
        sys.dont_write_bytecode = False  # into this folder: without it each start takes four times as long
        sys.path[0] = os.path.join(folder, "lib")
        from launcher.cli.entry import run_and_exit

        run_and_exit()
    refuse(
        NOT_READY,
        "no-folder",
        "nowhere to unpack: %r" % "; ".join(said),
        "launcher.pyz, which runs from its own directory",
        "mount a writable directory and name it: TMPDIR=DIR",
    )


if sys.version_info < OLDEST:
    refuse_python()
main()
