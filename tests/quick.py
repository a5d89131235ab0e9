"""Environment variables that make compilation quick, set by tests, pages and notebooks before they import JAX."""

from importlib.metadata import version

# XLA optimizes less. The programs are too small for several LLVM threads, each with its own target machine.
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith(("0.9.", "0.10.")):
    # This halves the time of compilation; later releases do not know the flag.
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": " ".join(FLAGS),
    # Nobody profiles them: without source lines in the operations, no program has to be stripped of them before it is
    # looked up.
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1",
}
