# A Spack recipe; docs/site-admins.md says how to use it and what of it has been tried.
import os

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Millrace(CMakePackage, CudaPackage):
    """Stable Diffusion pre-training from large sets of captioned images, as one MPI program."""

    # Put the address of your clone here.
    homepage = "file:///path/to/millrace"
    git = "file:///path/to/millrace"

    license("MIT")

    version("main", branch="main")

    variant("tests", default=False, description="Build the tests")
    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.10:", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10.7:1.10,1.12.1: ~mpi")
    depends_on("libarchive")
    depends_on("opencv@4.5: +imgproc")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("zlib-api")
    depends_on("libwebp")
    depends_on("boost@1.74: +program_options +log +thread +filesystem +system +date_time +regex +atomic +chrono")
    depends_on("yaml-cpp@0.6.3:")
    depends_on("nlohmann-json@3.9:")
    depends_on("fmt@8.1:")
    depends_on("icu4c")
    depends_on("curl")
    depends_on("openssl@3:")
    depends_on("xxhash")
    depends_on("arrow@21.0.0 +parquet +snappy +zlib +zstd +brotli +lz4")
    depends_on("googletest@1.10: +gmock", when="+tests")

    depends_on("py-torch@2.11.0 ~cuda", when="~cuda")
    depends_on("py-torch@2.11.0 +cuda +nccl", when="+cuda")
    depends_on("cuda@12.6:", when="+cuda")
    depends_on("nccl", when="+cuda")
    # Our own kernels are built for all that src/kernels/CMakeLists.txt names, whatever LibTorch is built for.
    for arch in ("80", "86", "89", "90", "100", "120"):
        depends_on(f"py-torch cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    # CLIP's vocabulary, which `init` writes into new folders, lies in this wheel.
    resource(
        name="open_clip",
        url="https://pypi.io/packages/py3/o/open_clip_torch/open_clip_torch-3.2.0-py3-none-any.whl",
        sha256="e1f5b3ecbadb6d8ea64b1f887db23efee9739e7c0d0075a8a2a3cabae8fed8d1",
        expand=False,
        destination="open_clip_wheel",
    )

    @property
    def wheels(self):
        """The folder that CMake looks in is a Python environment; here it is made of links to Spack's packages."""
        return join_path(self.stage.path, "environment")

    @run_before("cmake")
    def make_environment(self):
        site_packages = join_path(self.wheels, "lib", "python3", "site-packages")
        mkdirp(site_packages)
        python_platlib = self.spec["py-torch"].package.module.python_platlib
        symlink(join_path(python_platlib, "torch"), join_path(site_packages, "torch"))
        arrow = self.spec["arrow"]
        pyarrow = join_path(site_packages, "pyarrow")
        mkdirp(pyarrow)
        symlink(arrow.prefix.include, join_path(pyarrow, "include"))
        for library in find(arrow.prefix, ["libarrow.so.*", "libparquet.so.*"], recursive=True):
            symlink(library, join_path(pyarrow, os.path.basename(library)))
        if self.spec.satisfies("+cuda"):
            mkdirp(join_path(site_packages, "nvidia"))
            symlink(self.spec["nccl"].prefix, join_path(site_packages, "nvidia", "nccl"))
        wheel = find(self.stage.source_path, "open_clip_torch-*.whl", recursive=True)[0]
        vocabulary = "open_clip/bpe_simple_vocab_16e6.txt.gz"
        which("unzip", required=True)("-q", wheel, vocabulary, "-d", site_packages)

    def cmake_args(self):
        return [
            self.define("MILLRACE_VENV", self.wheels),
            self.define("MILLRACE_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define_from_variant("MILLRACE_TESTS", "tests"),
        ]

    def setup_run_environment(self, env):
        env.set("MILLRACE_HOME", self.prefix.share.millrace)
