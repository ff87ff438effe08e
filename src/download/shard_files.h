#pragma once
#include <string>
#include <vector>

#include "shard.h"

// The files of one shard, as img2dataset lays them out.
namespace millrace {

// Its statistics file is written last: where it is, the shard is finished.
bool is_finished(const DownloadConfig& config, std::uint64_t shard);

// 00000.tar and 00000.parquet, or 00000.parquet with the images; then 00000_stats.json.
void write_shard(const DownloadConfig& config, const Shard& shard);

// Takes over what a finished shard holds already and returns the rows worth asking again. With none, nothing is taken
// over. Error(io) when its files do not belong to these rows.
std::vector<std::size_t> load_for_retry(const DownloadConfig& config, Shard& shard);

// "000010005": shard and index with as many digits as rows_per_file asks for.
std::string key_of(const DownloadConfig& config, std::uint64_t shard, std::size_t index);

}  // namespace millrace
