"""Lists the tensors of safetensors files with checksums of their bytes.

python3 sums.py *.safetensors > sums.txt

It knows nothing of this package: it is what the package is checked against.
"""

import hashlib
import json
import struct
import sys

for path in sys.argv[1:]:
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    for name, info in json.loads(data[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        digest = hashlib.sha256(data[8 + n + begin : 8 + n + end]).hexdigest()[:16]
        shape = ",".join(map(str, info["shape"]))
        print(path, name, info["dtype"], f"[{shape}]", digest)
