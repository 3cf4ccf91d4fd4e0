"""What the fuzzing targets start from, written anew for each run: `fuzz_seeds.py CORPUS`, a folder for each target.

Log entries, replies and rows are those of machine/tests/formats/bytes.txt; bodies of HTTP are made out of
docs/openapi.json.
"""

import json
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCHEMAS = json.loads((ROOT / "docs/openapi.json").read_text())["components"]["schemas"]


def varint(number):
    """As postcard writes numbers."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def after_varint(encoded):
    return encoded[next(at for at, byte in enumerate(encoded) if byte < 128) + 1 :]


def peer_frame(kind, body):
    return struct.pack(">IQB", 0, 7, kind) + body


def append(payload):
    """An append request of one log entry; see raft/src/transport/frame.rs."""
    vote, prev, commit, entry = bytes([3, 1, 1]), bytes([1, 2, 8]), bytes([0]), bytes([3, 9])
    head = vote + prev + commit + varint(1) + entry + varint(len(payload))
    return peer_frame(1, struct.pack(">I", len(head)) + head + payload)


def propose(entry):
    """The entry's only request, passed on to the leader."""
    request = after_varint(entry)[1:]
    return peer_frame(5, varint(1000) + varint(len(request)) + request)


def committed(reply):
    return peer_frame(128, bytes([0, 9, 5]) + reply)


def sample(schema, depth, everything):
    """A value of a schema: with all that it may have, or with what it must have."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rsplit("/", 1)[1]]
    if "oneOf" in schema:
        # A value that may be absent has its null in front.
        return sample(schema["oneOf"][-1 if everything else 0], depth, everything)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        wanted = schema.get("properties", {}) if everything and depth < 6 else schema.get("required", [])
        return {name: sample(schema.get("properties", {}).get(name, {}), depth + 1, everything) for name in wanted}
    if kind == "array":
        return [sample(schema["items"], depth + 1, everything)] if everything and depth < 6 else []
    plain = {"integer": schema.get("minimum", 1), "number": 1.5, "boolean": True, "string": "a"}
    return plain.get(kind)


def bodies():
    for schema in SCHEMAS.values():
        for everything in (False, True):
            yield json.dumps(sample(schema, 0, everything)).encode()
        for variant in schema.get("oneOf", []):
            yield json.dumps(sample(variant, 0, True)).encode()


def seeds():
    """Target and bytes of each seed."""
    for line in (ROOT / "machine/tests/formats/bytes.txt").read_text().splitlines():
        kind, _, encoded = line.partition(" ")
        if kind not in ("entry", "reply", "row"):
            continue
        encoded = bytes.fromhex(encoded.rsplit(" ", 1)[-1])
        yield "frame", encoded
        if kind == "entry":
            yield "entry", encoded
            yield "peer_frame", append(bytes([1]) + encoded)
            yield "peer_frame", propose(encoded)
        if kind == "reply":
            yield "peer_frame", committed(encoded)
    # A membership of one voter.
    yield "peer_frame", append(bytes([2, 0, 1, 1, 1, 1, 1, 0, 1, ord("a"), 0, 0, 0, 0, 0]))
    # One byte of one file of the log written over, and files cut.
    for file in range(4):
        for at in (0, 1, 5, 9, 20, 60, 300, 900):
            yield "log", bytes([file, at >> 8, at & 255, 1, 255])
            yield "log", bytes([file, at >> 8, at & 255, 0])
    for body in bodies():
        yield "http_body", body


def main():
    corpus = Path(sys.argv[1])
    for number, (target, encoded) in enumerate(seeds()):
        folder = corpus / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed-{number:04}").write_bytes(encoded)


main()
