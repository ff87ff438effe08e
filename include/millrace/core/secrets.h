#pragma once
#include <string>
#include <string_view>

namespace millrace {

// `text` with *** in place of secrets, for logs, messages, reports and the files of run folders and caches, which
// others read:
//   - user and password of addresses (https://user:password@host/...), also where the password has a slash;
//   - values of parameters whose names say so (?X-Amz-Signature=..., &token=..., &sig=...);
//   - values of variables and options of commands whose names end so (HF_TOKEN=..., --password=..., --token ...);
//   - what follows "Authorization:", in quotes up to their end;
//   - values, of eight letters or more, of environment variables WDS_NAME (io/net/urls.h) whose names say so
//     (WDS_TOKEN), as they are at the start.
// Secrets are recognized by these names alone: one under another name stays.
std::string without_secrets(std::string_view text);

}  // namespace millrace
