#pragma once
#include <string>
#include <string_view>

namespace millrace {

// `text` with *** in place of what gives access, for logs, messages, reports and the files of run folders and caches,
// which others read:
//   - user and password of addresses (https://user:password@host/...);
//   - values of parameters whose names say so (?X-Amz-Signature=..., &token=..., &sig=...);
//   - what follows "Authorization:", in quotes up to their end;
//   - values of environment variables WDS_NAME (io/net/urls.h) whose names say so (WDS_TOKEN), as they are at the
//   start.
// What a secret is goes by these names alone: one under another name is not known.
std::string without_secrets(std::string_view text);

}  // namespace millrace
