#pragma once
#include "millrace/core/files.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/storage_retry.h"

namespace millrace {

// Error(usage) when archives have another size than the one that was encoded: how many, the first of them, and the
// command that removes their latents. A warning of those whose size nobody knows, as behind an address, when they lie
// elsewhere than what was encoded: the archives of many sets of data have the same names. Reads one small file of each
// archive at most, and of a complete cache only of archives that its MANIFEST.json does not know with this size; what
// fails for reasons of storage again for `retry_for`. Error(requeue) after a stop::request().
void check_archives(const fs::path& cache, const Manifest& manifest, StorageRetry::Seconds retry_for);

}  // namespace millrace
