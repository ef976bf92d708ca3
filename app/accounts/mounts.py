"""Whether a path lies on a network file system, as far as the operating system tells."""

from __future__ import annotations

from pathlib import Path

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs",
     "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "davfs"}
)  # fmt: skip


def network_filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The type of the network file system that `path` lies on; None: local, or not known."""
    if str(path).startswith(("//", "\\\\")):
        return "network share"
    try:
        lines = mounts.read_text("utf-8").splitlines()
    except OSError:  # not Linux: nothing to read
        return None
    resolved = path.resolve()
    best, kind = Path("/"), ""
    for line in lines:
        fields = line.split(" ")
        # the kernel writes a blank in a path as \040
        where = Path(fields[1].replace("\\040", " "))
        if resolved.is_relative_to(where) and len(where.parts) >= len(best.parts):
            best, kind = where, fields[2]
    return kind if kind in _NETWORK else None
