"""Fills a folder for origin.py with one package for each of pip, npm, cargo and apt.

usage: mirror.py FOLDER FILES_HOST

The indexes are below `simple/`, `files/npm/` and `files/cargo/`, the packages of these at
`https://FILES_HOST/files/`; the apt repository is below `files/apt/` as a whole.
"""

import base64
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

NAME = "tidegate-sample"


def write(path: pathlib.Path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def tarball(files: dict) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def pip(root: pathlib.Path, files: str):
    buffer = io.BytesIO()
    info = "tidegate_sample-1.0.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("tidegate_sample.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    name = "tidegate_sample-1.0-py3-none-any.whl"
    write(root / "files" / name, buffer.getvalue())
    for package in (NAME, "pip"):
        write(root / "simple" / package / "index.html", f'<a href="{files}/{name}">{name}</a>\n')


def npm(root: pathlib.Path, files: str):
    packed = tarball({"package/package.json": json.dumps({"name": NAME, "version": "1.0.0"})})
    write(root / "files" / f"{NAME}-1.0.0.tgz", packed)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    version = {"name": NAME, "version": "1.0.0"}
    version["dist"] = {"tarball": f"{files}/{NAME}-1.0.0.tgz", "integrity": integrity}
    package = {"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    write(root / "files/npm" / NAME, json.dumps(package))
    write(root / "files/npm/npm/latest", json.dumps(version))


def cargo(root: pathlib.Path, files: str):
    manifest = f'[package]\nname = "{NAME}"\nversion = "1.0.0"\nedition = "2021"\n'
    folder = f"{NAME}-1.0.0"
    packed = tarball({f"{folder}/Cargo.toml": manifest, f"{folder}/src/lib.rs": ""})
    write(root / "files" / f"{folder}.crate", packed)
    write(root / "files/cargo/config.json", json.dumps({"dl": files + "/{crate}-{version}.crate"}))
    entry = {"name": NAME, "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    entry["cksum"] = hashlib.sha256(packed).hexdigest()
    write(root / "files/cargo/ti/de" / NAME, json.dumps(entry) + "\n")


def apt(root: pathlib.Path):
    if not shutil.which("dpkg-deb"):
        return
    control = f"Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.test>\nDescription: sample\n"
    with tempfile.TemporaryDirectory() as work:
        write(pathlib.Path(work) / "DEBIAN/control", control)
        package = root / "files/apt" / f"{NAME}_1.0_all.deb"
        package.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-b", work, package], check=True, stdout=subprocess.DEVNULL)
    data = package.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    write(root / "files/apt/Packages", f"{control}Filename: ./{package.name}\nSize: {len(data)}\nSHA256: {digest}\n")


def main():
    folder, files = sys.argv[1:]
    root = pathlib.Path(folder)
    pip(root, f"https://{files}/files")
    npm(root, f"https://{files}/files")
    cargo(root, f"https://{files}/files")
    apt(root)


main()
