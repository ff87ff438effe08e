#pragma once
#include "archives.h"
#include "life.h"

namespace millrace::storm {

// Every stripe of `run`, which read the images, gives in each of its epochs every good row assigned to it exactly
// once; all rows are assigned in every epoch. Stripes and order are those of millrace_data, the rows are counted here.
Troubles check_epoch_coverage(const Site& site, const fs::path& run, const Truth& truth);

}  // namespace millrace::storm
