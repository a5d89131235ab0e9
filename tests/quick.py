"""Programs that run once or twice are compiled quickly: what tests, pages and notebooks set before they import JAX."""

from importlib.metadata import version

# XLA optimizes less, and hands no program, too small to be worth it, to several threads of LLVM's, each with a machine
# of its own.
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith(("0.9.", "0.10.")):
    # Half of the time of compilation; later releases do not know the flag.
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": " ".join(FLAGS),
    # Nobody profiles them: no operation is told the line that it comes from, and no program must be cleaned of lines
    # before it is looked for.
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1",
}
