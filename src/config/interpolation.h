#pragma once
#include <functional>
#include <vector>

#include "millrace/config/node.h"
#include "path.h"
#include "yaml.h"

namespace millrace::config {

// Replaces every ${...} in the tree: ${a.b}, ${.sibling}, ${..up}, ${list[0]}, ${oc.env:VAR,default},
// ${oc.decode:TEXT},
// ${oc.select:KEY,default}, nested and concatenated; \${ stands for itself (the grammar of OmegaConf 2.3). What fails
// is added to `problems` and marked broken. `merge_over` merges maps onto the resolved node at the path.
using MergeOver = std::function<void(Node& node, const Path& path, std::vector<Node> over)>;
void resolve_references(Node& root, const MergeOver& merge_over, std::vector<Problem>& problems);

// Whether it is one reference, with nothing around it, that waits for its value.
bool is_reference(const Node& node);

}  // namespace millrace::config
