// Runs a GGUF file with llama.cpp on a GPU, for llamacpp_cuda.py:
//
//     llama_peer MODEL.gguf CONTEXT
//
// It says "ready" and the GPU's name once the model is loaded. Then every line of its input is a request: the number of
// tokens to generate, and the tokens of the prompt. The answer is one line with the generated tokens.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

// The likeliest token, straight from the logits: a chain of samplers would sort candidates that nobody asks for.
static llama_token likeliest(llama_context* context, int vocabulary) {
    const float* logits = llama_get_logits_ith(context, -1);
    float highest = logits[0];
    for (int token = 1; token < vocabulary; ++token) highest = logits[token] > highest ? logits[token] : highest;
    for (int token = 0; token < vocabulary; ++token) {
        if (logits[token] == highest) return token;
    }
    return 0;
}

static void decode(llama_context* context, std::vector<llama_token>& tokens) {
    if (llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()))) != 0) {
        std::fprintf(stderr, "llama_decode failed\n");
        std::exit(1);
    }
}

int main(int count, char** words) {
    if (count != 3) return 2;
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    ggml_backend_dev_t gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (gpu == nullptr) {
        std::fprintf(stderr, "llama.cpp sees no GPU\n");
        return 1;
    }
    llama_model_params how = llama_model_default_params();
    how.n_gpu_layers = 999;  // all of them
    llama_model* model = llama_model_load_from_file(words[1], how);
    if (model == nullptr) return 1;
    llama_context_params room = llama_context_default_params();
    room.n_ctx = room.n_batch = static_cast<uint32_t>(std::atoi(words[2]));
    llama_context* context = llama_init_from_model(model, room);
    if (context == nullptr) return 1;
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::cout << "ready " << ggml_backend_dev_description(gpu) << std::endl;

    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream request(line);
        int wanted = 0;
        request >> wanted;
        std::vector<llama_token> tokens;
        for (llama_token token; request >> token;) tokens.push_back(token);
        llama_memory_clear(llama_get_memory(context), false);
        std::ostringstream answer;
        for (int made = 0; made < wanted; ++made) {
            decode(context, tokens);
            tokens.assign(1, likeliest(context, vocabulary));
            answer << tokens[0] << ' ';
        }
        std::cout << answer.str() << std::endl;
    }
    return 0;
}
