"""Generates the protobuf messages of the package from the repository's protos.

The validation rules (buf.validate) are left out: their schema would be registered in the process-wide
descriptor pool, where it clashes with the copy that the protovalidate package brings.

Usage: generate.py PROTO_ROOT OUTPUT_DIRECTORY, run by the interpreter whose environment has protoc.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

RULES = "buf/validate/validate.proto"


def strip_message(message: descriptor_pb2.DescriptorProto) -> None:
    """Drops the validation rules of a message, its fields and what is nested in it."""
    if not message.options.map_entry:
        message.ClearField("options")
    for field in message.field:
        field.ClearField("options")
    for nested in message.nested_type:
        strip_message(nested)


def strip(files: descriptor_pb2.FileDescriptorSet) -> None:
    """Drops the validation schema and all uses of it."""
    kept = [file for file in files.file if file.name != RULES]
    del files.file[:]
    files.file.extend(kept)
    for file in files.file:
        if RULES not in file.dependency:
            continue
        dependencies = [name for name in file.dependency if name != RULES]
        del file.dependency[:]
        file.dependency.extend(dependencies)
        for message in file.message_type:
            strip_message(message)


def main(root: Path, out: Path) -> None:
    protoc = Path(sys.executable).parent / "protoc"
    include = [f"-I{root}", f"-I{root / 'third_party'}"]
    protos = sorted(str(p.relative_to(root)) for p in (root / "kvgate" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        image = Path(scratch) / "image.bin"
        full = ["--include_imports", "--include_source_info", f"--descriptor_set_out={image}"]
        subprocess.run([protoc, *include, *full, *protos], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())
        strip(files)
        image.write_bytes(files.SerializeToString())
        generated = [f"--python_out={out}", f"--pyi_out={out}"]
        subprocess.run([protoc, f"--descriptor_set_in={image}", *generated, *protos], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
