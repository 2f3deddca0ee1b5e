# SPDX-License-Identifier: Apache-2.0
"""Small apt repositories with a signed Release file, for tests: a flat folder of packages each."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path


class Key:
    """A key that signs for as long as its `with` block; `public` is what apt trusts it by."""

    def __enter__(self) -> "Key":
        # A short path: the agent's socket lies in it, and has at most 107 bytes.
        self._home = tempfile.TemporaryDirectory(prefix="key.")
        self._run("--quick-generate-key", "a test of djinnd", "ed25519", "sign", "1d")
        self.public = self._run("--export")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["gpgconf", "--homedir", self._home.name, "--kill", "all"], check=True)
        self._home.cleanup()

    def sign(self, text: str) -> str:
        return self._run("--clearsign", said=text.encode()).decode()

    def _run(self, *arguments: str, said: bytes = b"") -> bytes:
        command = ["gpg", "--quiet", "--batch", "--homedir", self._home.name, "--passphrase", ""]
        done = subprocess.run([*command, *arguments], input=said, check=True, capture_output=True)
        return done.stdout


def make_repository(folder: Path, packages: list[Path], key: Key) -> None:
    """For sources.list: `deb [signed-by=...] file:FOLDER ./`."""
    folder.mkdir(parents=True)
    for package in packages:
        (folder / package.name).hardlink_to(package)
    (folder / "Packages").write_text(_ftparchive(folder, "packages", "."))
    (folder / "InRelease").write_text(key.sign(_ftparchive(folder, "release", ".")))


def _ftparchive(folder: Path, *arguments: str) -> str:
    rest = [f"APT::FTPArchive::{which}=false" for which in ("MD5", "SHA1", "SHA512")]
    command = ["apt-ftparchive", *(f"-o={option}" for option in rest), *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def with_version(package: Path, version: str, folder: Path) -> Path:
    """The same package under another version, uncompressed; and so what it needs of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as unpacked:
        subprocess.run(["dpkg-deb", "--raw-extract", str(package), unpacked], check=True)
        control = Path(unpacked) / "DEBIAN" / "control"
        text = control.read_text()
        (old,) = re.findall(r"^Version: (.*)$", text, re.MULTILINE)
        text = text.replace(f"Version: {old}", f"Version: {version}")
        control.write_text(text.replace(f"(= {old})", f"(= {version})"))
        out = folder / package.name.replace(f"_{old}_", f"_{version}_")
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", unpacked, str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def missing_tools() -> list[str]:
    """Debian's packages of the tools that are not installed."""
    tools = {"apt-ftparchive": "apt-utils", "gpg": "gnupg", "dpkg-deb": "dpkg"}
    return [package for tool, package in tools.items() if shutil.which(tool) is None]
