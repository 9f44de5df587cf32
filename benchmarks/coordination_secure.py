"""The secure sum: error, time and bytes a client for 10 clients of TinyBERT's size.

    python -m benchmarks.coordination_secure

Every vector has the norm of its bound (5), as a contribution of five unit gradients that all agree would. The other
side is the plain sum of the same vectors in float32.
"""

import argparse
import platform
import time
from importlib.metadata import version

import numpy as np

from coreplay.coordination.messages import Contribution, Stamp
from coreplay.coordination.secure import SecureClient, SecureServer
from coreplay.coordination.secure.protocol import Keys, Masked, Reveal, Shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--dimension", type=int, default=14_300_000)
    parser.add_argument("--drop", type=int, default=1, help="clients that fall silent after the shares")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    names = [f"client{k}" for k in range(options.clients)]
    stamp = Stamp("benchmark", period=0, round=0)
    clients = {name: SecureClient(name, stamp, bound=5.0) for name in names}
    server = SecureServer(dict.fromkeys(names, 5.0), options.dimension, stamp)
    seconds, cpu, up = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)

    def send(name, make):
        began, used = time.perf_counter(), time.process_time()
        data = make().to_bytes()
        seconds[name] += time.perf_counter() - began
        cpu[name] += time.process_time() - used
        up[name] += len(data)
        return data

    for name, client in clients.items():
        server.receive(Keys.from_bytes(send(name, client.advertise)))
    roster = server.roster()
    for name, client in clients.items():
        server.receive(Shares.from_bytes(send(name, lambda client=client: client.share(roster))))
    exact = np.zeros(options.dimension)
    survivors = names[: len(names) - options.drop]
    adding = 0.0
    for name in survivors:
        vector = rng.standard_normal(options.dimension, dtype=np.float32)
        vector *= np.float32(4.999 / np.linalg.norm(vector.astype(np.float64)))
        exact += vector
        inbox = server.inbox(name)
        data = send(name, lambda name=name, vector=vector, inbox=inbox: clients[name].mask(vector, inbox))
        began = time.perf_counter()
        server.receive(Masked.from_bytes(data))
        adding += time.perf_counter() - began
    request = server.request()
    for name in survivors:
        data = send(name, lambda name=name: clients[name].reveal(request))
        server.receive(Reveal.from_bytes(data))
    began = time.perf_counter()
    total = server.total()
    unmasking = time.perf_counter() - began
    error = np.linalg.norm(total - exact) / np.linalg.norm(exact)
    plain = len(Contribution("benchmark", 0, 0, names[0], -1, vector).to_bytes())
    times = sorted(seconds[name] for name in survivors)
    print(f"{options.clients} clients, {options.drop} dropped out after the shares, d = {options.dimension}")
    print(f"relative error          {error:.2e}    (at most 1e-5)")
    print(f"seconds a client        {times[len(times) // 2]:.2f} median, {times[-1]:.2f} slowest    (at most 1.5)")
    print(f"of it processor time    {max(cpu.values()):.2f} at most")
    print(f"bytes a client, secure  {max(up.values())}")
    print(f"bytes a client, plain   {plain}    ratio {max(up.values()) / plain:.6f}  (at most 1.05)")
    print(f"server: {adding:.2f} s to add, {unmasking:.2f} s to take the masks off")
    names = ("numpy", "cryptography")
    print("versions:", {"python": platform.python_version(), **{name: version(name) for name in names}})


if __name__ == "__main__":
    main()
