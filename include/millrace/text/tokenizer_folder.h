#pragma once
#include <filesystem>
#include <string>

namespace millrace {

// Writes vocab.json, merges.txt, tokenizer_config.json and special_tokens_map.json as in the hub's Stable Diffusion
// folders, from CLIP's published merges (bpe_simple_vocab_16e6.txt.gz). pad_token: "<|endoftext|>" (SD 1) or "!" (SD
// 2).
void write_clip_tokenizer_folder(const std::filesystem::path& bpe_gz, const std::filesystem::path& out_folder,
                                 const std::string& pad_token);

}  // namespace millrace
