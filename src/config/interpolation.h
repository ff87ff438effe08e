#pragma once
#include <vector>

#include "millrace/config/node.h"
#include "yaml.h"

namespace millrace::config {

// Replaces every ${...} in the tree: ${a.b}, ${.sibling}, ${..up}, ${list[0]}, ${oc.env:VAR,default},
// ${oc.decode:TEXT},
// ${oc.select:KEY,default}, nested and concatenated; \${ stands for itself (the grammar of OmegaConf 2.3). What fails
// is added to `problems` and marked broken.
void resolve_references(Node& root, std::vector<Problem>& problems);

}  // namespace millrace::config
