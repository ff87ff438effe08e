#pragma once
#include "column_types.h"
#include "millrace/download/download_config.h"

// The folder of archives, and what lies in it for later starts: the settings in download.yaml, the lists in
// download.lists.
namespace millrace {

// Error(usage) when its archives were made with other settings, from other lists or by another program, or when it has
// none yet and a list lies in it. Error(io) when a list is missing. Writes nothing.
void check_folder(const DownloadConfig& config);

// The types of the lists' columns that its archives were made with; empty when it has none. For a folder that was
// checked. Error(io) where they cannot be read.
ListTypes known_types(const DownloadConfig& config);

// Makes the folder ready for writers: what killed runs left unfinished is removed; settings, lists and the types of
// their columns are kept. Error(io) where it cannot be written.
void open_folder(const DownloadConfig& config, const ListTypes& types);

}  // namespace millrace
