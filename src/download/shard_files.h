#pragma once
#include <string>
#include <vector>

#include "millrace/core/error.h"
#include "shard.h"

// The files of one shard, as img2dataset lays them out.
namespace millrace {

// Its statistics file is written last: where it is, the shard is finished.
bool is_finished(const DownloadConfig& config, std::uint64_t shard);

// A finished one cannot be read, or lacks an image. Nothing was changed.
class DamagedArchive : public Error {
 public:
  using Error::Error;
};

// 00000.tar and 00000.parquet, or 00000.parquet with the images; then 00000_stats.json. Old images come from the files
// that are replaced, row by row; where there are such and no new one, the file that holds them stays. False where
// nothing was written. DamagedArchive when an old image is not there.
bool write_shard(const DownloadConfig& config, const Shard& shard);

// Takes over what the table of a finished shard tells, not its images, and returns the rows worth asking again. With
// none, nothing is taken over. Where an earlier retry was killed between the shard's files, table and statistics are
// written anew first. Error(io) when it does not belong to these rows; DamagedArchive.
std::vector<std::size_t> load_for_retry(const DownloadConfig& config, Shard& shard);

// "000010005": shard and index with as many digits as rows_per_file asks for.
std::string key_of(const DownloadConfig& config, std::uint64_t shard, std::size_t index);

}  // namespace millrace
