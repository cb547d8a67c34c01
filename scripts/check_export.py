#!/usr/bin/env python3
"""Runs exported programs through XLA and compares with what Tenon computed.

    TENON_EXPORT_TO=FOLDER build/tests/ir_test -tc='hlo: every sample call*'
    scripts/check_export.py FOLDER [PART_OF_A_NAME]

For each NAME.mlir (StableHLO) and NAME.hlo in FOLDER, NAME.in.safetensors and NAME.out.safetensors hold inputs and expected outputs, named 0, 1, 2 ...
Needs jax, ml_dtypes, numpy and safetensors: no part of Tenon's own tests. One worker process per core; a program that kills its worker counts as failed.
"""
import json
import multiprocessing
import os
import struct
import sys
from concurrent.futures import ProcessPoolExecutor

TOLERANCE = {"float64": 1e-9, "float32": 3e-5, "bfloat16": 2e-2, "float16": 3e-3, "float8_e4m3fn": 0.13, "float8_e5m2": 0.26}
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
         "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}


def load(path):
    import ml_dtypes
    import numpy as np
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        kind = NAMES[entry["dtype"]]
        dtype = np.dtype(getattr(ml_dtypes, kind)) if hasattr(ml_dtypes, kind) else np.dtype(kind)
        start, end = entry["data_offsets"]
        arrays[int(name)] = np.frombuffer(data[8 + length + start:8 + length + end], dtype).reshape(entry["shape"])
    return [arrays[k] for k in sorted(arrays)]


def compiled(path):
    import jax
    from jax._src import compiler, xla_bridge
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    import numpy as np
    backend = xla_bridge.get_backend("cpu")
    if path.endswith(".hlo"):
        from jaxlib import _hlo, _jax
        with open(path) as file:
            module = _hlo.hlo_module_from_text(file.read())
        text = _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    else:
        with open(path) as file:
            text = file.read()
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        module.operation.verify()
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        devices = jax.local_devices(backend="cpu")[:1]
        executable = backend.compile_and_load(module, executable_devices=compiler.xc.DeviceList(tuple(devices)), compile_options=options)
    return executable


def differs(want, got):
    import numpy as np
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype.name not in TOLERANCE:
        return "" if np.array_equal(want, got) else f"{got.tolist()} instead of {want.tolist()}"[:400]
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = a[np.isfinite(a)]
    limit = TOLERANCE[want.dtype.name] * max(1.0, np.abs(finite).max() if finite.size else 1.0)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        alike |= np.abs(a - b) <= limit
    return "" if alike.all() else f"{got.tolist()} instead of {want.tolist()}"[:400]


def check(path):
    import jax
    jax.config.update("jax_enable_x64", True)
    import numpy as np
    stem = path.rsplit(".", 1)[0]
    try:
        executable = compiled(path)
        inputs = [jax.device_put(x) for x in load(stem + ".in.safetensors")]
        outputs = [np.asarray(shards[0]) for shards in executable.execute_sharded(inputs).disassemble_into_single_device_arrays()]
        wanted = load(stem + ".out.safetensors")
        if len(outputs) != len(wanted):
            return path, f"{len(outputs)} outputs instead of {len(wanted)}"
        for k, (want, got) in enumerate(zip(wanted, outputs)):
            if error := differs(want, got):
                return path, f"output {k}: {error}"
        return path, ""
    except Exception as error:  # of any kind: it is what XLA says of the program
        return path, f"{type(error).__name__}: {str(error).strip()}"[:600]


def main():
    folder, part = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith((".mlir", ".hlo")) and part in name]
    failed = {".mlir": 0, ".hlo": 0}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"), max_workers=int(os.environ.get("WORKERS", os.cpu_count()))) as pool:
        for path, error in pool.map(check, paths, chunksize=8):
            if error:
                failed[os.path.splitext(path)[1]] += 1
                print(f"{os.path.basename(path)}: {error}", flush=True)
    for suffix, count in failed.items():
        total = sum(path.endswith(suffix) for path in paths)
        print(f"{suffix[1:]}: {total} programs, {total - count} equal")
    return any(failed.values())


if __name__ == "__main__":
    sys.exit(main())
