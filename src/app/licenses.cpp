#include "licenses.h"

#include <fmt/format.h>

#include <array>

#include "millrace/nn/device.h"
#include "output.h"

namespace millrace {
namespace {

struct Library {
  const char* name;
  const char* license;  // SPDX identifier where there is one
  const char* use;
};

constexpr std::array libraries = {
    Library{"LibTorch", "BSD-3-Clause", "tensors, networks (with oneDNN, Apache-2.0, and Intel MKL, ISSL)"},
    Library{"Apache Arrow, Parquet", "Apache-2.0", "Parquet files, S3"},
    Library{"Open MPI or another", "BSD-3-Clause", "messages between ranks"},
    Library{"HDF5", "BSD-3-Clause", "latent caches"},
    Library{"libarchive", "BSD-2-Clause", "tar archives"},
    Library{"OpenCV core, imgproc", "Apache-2.0", "resizing"},
    Library{"libjpeg-turbo", "IJG AND BSD-3-Clause AND Zlib", "JPEG"},
    Library{"libpng", "libpng-2.0", "PNG"},
    Library{"libwebp", "BSD-3-Clause", "WebP"},
    Library{"zlib", "Zlib", "compression"},
    Library{"Boost", "BSL-1.0", "command line, log"},
    Library{"yaml-cpp", "MIT", "configuration"},
    Library{"JSON for Modern C++", "MIT", "JSON"},
    Library{"{fmt}", "MIT", "text"},
    Library{"ICU", "Unicode-DFS-2016", "Unicode in captions"},
    Library{"curl", "curl", "HTTP"},
    Library{"OpenSSL", "Apache-2.0", "digests, TLS"},
    Library{"xxHash", "BSD-2-Clause", "digests"},
    Library{"CLIP's vocabulary", "MIT", "a file of open_clip, for millrace init"},
};

constexpr std::array cuda_libraries = {
    Library{"CUDA runtime, cuBLAS", "LicenseRef-NVIDIA-CUDA-EULA", "arithmetic on GPUs"},
    Library{"cuDNN", "LicenseRef-NVIDIA-cuDNN-SLA", "convolutions, attention on GPUs"},
    Library{"NCCL", "BSD-3-Clause", "gradients between GPUs"},
};

void print_row(const Library& library) {
  say("  {:<22} {:<32} {}\n", library.name, library.license, library.use);
}

}  // namespace

void print_licenses() {
  say("millrace {}: MIT. It uses these libraries, which keep their own licences:\n\n", MILLRACE_VERSION);
  for (const auto& library : libraries) print_row(library);
  if (built_with_cuda())
    for (const auto& library : cuda_libraries) print_row(library);
}

}  // namespace millrace
