"""Commands of the documents that the tests can't run, each with the reason; see document_commands.py.

An entry that is in no document any more fails the tests, and so does a reason that names a file which is
gone. Benchmarks need no entry: `is_benchmark` knows them.
"""

from __future__ import annotations

HOSTS = (
    "needs these hosts; tests/integration/test_ssh.py starts such jobs between network namespaces"
)
DOCTOR = "needs these hosts; tests/integration/test_doctor.py asks three network namespaces"
SLURM = "needs SLURM; tests/integration/test_slurm.py does this in a cluster of its own"
MPI = "needs an MPI library; tests/integration/test_mpi_launchers.py does this with three"
LSF = "needs LSF, which can't be had here; tests/unit/runner/test_mpi_launch.py"
DOCKER = (
    "needs Docker; tests/integration/test_containers.py starts the image's files in a plain folder"
)
KUBERNETES = (
    "needs a cluster of Kubernetes; tests/integration/test_container_files.py checks the chart"
)
SELF = "the project's own tests: they would run themselves"

NOT_RUN: dict[str, str] = {
    "make demo": "trains for minutes on a busy machine and needs the MNIST images",
    "make test": SELF,
    "pip install .": "compiles for minutes and would replace the package under test",
    "HVD_TEST_REPETITIONS=50 .venv/bin/python -m pytest tests/multi/test_launcher_end.py"
    " tests/multi/test_launcher_peer_death.py": SELF,
    "mkdir -p build/fuzz/found": "belongs to the search below",
    "clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Icore"
    " tests/core/fuzz_codec.cpp core/base/*.cpp core/wire/*.cpp core/engine/framing.cpp"
    " core/transport/memory_channel.cpp -pthread -o build/fuzz/fuzz_codec": "needs clang's libFuzzer",
    "build/fuzz/fuzz_codec -max_total_time=600 -max_len=4096 build/fuzz/found tests/core/corpus": (
        "ten minutes long, and needs clang's libFuzzer"
    ),
    "docker build -f docker/cpu.Dockerfile -t horovod:cpu .": DOCKER,
    "docker build -f docker/cuda.Dockerfile -t horovod:cuda .": DOCKER,
    "docker run --rm horovod:cpu horovodrun -np 2 python /examples/pytorch/pytorch_mnist.py": DOCKER,
    "docker compose -f docker/compose.yaml run --rm launcher": DOCKER,
    "docker compose -f docker/compose.yaml down --volumes": DOCKER,
    "horovodrun -np 4 -H worker-1:2,worker-2:2 -p 12345 python /examples/pytorch/pytorch_mnist.py": (
        DOCKER
    ),
    "sudo chown 1000 launcher/id_ed25519": "needs root, and changes an owner",
    'docker run -d --network host -v "$PWD/worker:/etc/horovod/ssh:ro" horovod:cpu': DOCKER,
    'docker run --rm --network host -v "$PWD/launcher:/etc/horovod/ssh:ro" horovod:cpu horovodrun -np 8'
    " -H machine1:4,machine2:4 -p 12345 --ssh-accept-new-host-keys python train.py": DOCKER,
    "kubectl create secret generic horovod-keys --from-file=authorized_keys --from-file=id_ed25519"
    " --from-file=ssh_host_ed25519_key --from-file=known_hosts": KUBERNETES,
    "helm install mnist deploy/helm/horovod --set image.repository=registry.example/horovod"
    " --set ssh.existingSecret=horovod-keys --set ssh.acceptNewHostKeys=false"
    " --set workers.replicas=2 --set workers.slots=2": KUBERNETES,
    "kubectl logs --follow job/mnist-horovod-launcher-1": KUBERNETES,
    "horovodrun doctor -H node1:2,node2:2": DOCTOR,
    "horovodrun doctor -hostfile hosts.txt --json": DOCTOR,
    "horovodrun -np 6 -H node1:2,me@node2:4 python train.py": HOSTS,
    "horovodrun -np 6 -hostfile hosts.txt python train.py": HOSTS,
    "horovodrun -np 4 -H node1:2,node2:2 python train.py": HOSTS,
    "horovodrun -np 2 -H me@node1:2 -p 2222 -i ~/.ssh/job python train.py": HOSTS,
    "python -m tensorflow.python.tools.optimize_for_inference --input whole.pb --output pruned.pb"
    " --frozen_graph=True --input_names images --output_names scores": (
        "needs a trained graph; tests/multi/test_launcher_examples_tensorflow.py freezes one"
    ),
    "jsrun --nrs 2 --tasks_per_rs 4 --cpu_per_rs 40 --gpu_per_rs 4 python train.py": LSF,
    "horovodrun python train.py": LSF,
    "horovodrun --jsrun python train.py": LSF,
    "horovodrun --mpi python train.py": LSF,
    "mpirun -np 4 python train.py": MPI,
    "horovodrun --mpi -np 4 -H node1:2,node2:2 python train.py": MPI,
    "srun -n 4 python train.py": SLURM,
    "srun --kill-on-bad-exit=1 python train.py": SLURM,
    "horovodrun --srun python train.py": SLURM,
    "horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker /shared/compute.json": (
        "serves until it is told to end; tests/multi/test_tensorflow_data_service.py does that"
    ),
}


def is_benchmark(command: str) -> bool:
    """Whether it is a measurement, which takes minutes and a quiet machine; `make bench` does those."""
    return command.startswith("python benchmarks/")
