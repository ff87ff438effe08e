// A latent cache whose files say anything: the first byte chooses which of them is replaced by the rest. Encodings have
// the announced shape and rows their ids, or there is an Error(io); NAME.h5 is parsed only where its digest is right,
// so that the HDF5 library never sees bytes that were not written by it (NOTE [Trust] in io/hdf5.h).
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "cached_archive.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/inspect_latent_cache.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"

namespace {

using namespace millrace;

struct Cache {
  fs::path folder, record, values;
  Archive archive;
  EncodingShape shape{{2, 3, 3}, {4, 5}};

  Cache() {
    std::string pattern = fs::exists("/dev/shm") ? "/dev/shm/millrace-fuzz-XXXXXX" : "/tmp/millrace-fuzz-XXXXXX";
    folder = ::mkdtemp(pattern.data());
    archive.name = archive.path = "a";
    const CacheDescription description{{{"made_with", "a fuzzer"}}, shape, std::vector<std::uint16_t>(20)};
    write_cache_description(folder, description);
    LatentFileWriter writer(folder, archive, description);
    const std::vector<std::uint16_t> moments(18), text(20);
    for (std::uint64_t row = 0; row < 4; ++row)
      writer.add({row, "a/" + std::to_string(row), "caption", moments, text, row != 3});
    writer.reject(4, RejectReason::too_small);
    writer.publish();
    write_cache_manifest(folder, {{{archive, 5, false}}});
    for (const auto& entry : fs::directory_iterator(latent_folder(folder, archive.name)))
      (entry.path().extension() == ".json" ? record : values) = entry.path();
  }
  ~Cache() { fs::remove_all(folder); }

  // What the first byte of an input chooses.
  fs::path place(int number) const {
    const fs::path places[] = {record, folder / "MANIFEST.json", folder / "CACHE.json", values};
    return places[number % 4];
  }
};

Cache& cache() {
  static Cache cache;
  return cache;
}

void load_rows() {
  const CachedArchive rows(cache().folder, cache().archive, cache().shape);
  CachedArchive::Opened opened;
  for (std::uint64_t row = 0; row < 8; ++row)
    for (const auto& place : rows.find(row)) {
      if (place.rejected()) continue;
      (void)rows.non_finite(place);
      const EncodedSample sample = rows.load(place, opened);
      if (sample.encoding.moments.size() != 18 || sample.encoding.text.size() != 20 || sample.ref.id.empty())
        std::abort();
    }
}

template <class Read>
void expect_result_or_error(Read read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.exit() != Exit::io) std::abort();
  }
}

}  // namespace

// Puts the sound files where scripts/fuzz looks for seeds: from them a fuzzer gets past digests.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  log::init({"", 0, false, ""});  // a warning per input would be all that is seen
  const char* const seeds = std::getenv("MILLRACE_FUZZ_SEEDS");
  for (int i = 0; seeds && i < 4; ++i)
    std::ofstream(fs::path(seeds) / ("sound-" + std::to_string(i)), std::ios::binary)
        << static_cast<char>(i) << read_file(cache().place(i));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const fs::path place = cache().place(data[0]);
  const std::string sound = read_file(place);
  std::ofstream(place, std::ios::binary).write(reinterpret_cast<const char*>(data + 1), static_cast<long>(size - 1));
  expect_result_or_error(load_rows);
  expect_result_or_error([] { (void)make_latent_manifest(cache().folder, 3); });
  expect_result_or_error([] { (void)read_cache_description(cache().folder); });
  (void)inspect_latent_cache(cache().folder);
  std::ofstream(place, std::ios::binary) << sound;
  return 0;
}
