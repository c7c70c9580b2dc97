/* Linked against, never loaded: lib/libonnxruntime.so.1 takes its place when the program starts. */
const void* OrtGetApiBase(void);
const void* OrtGetApiBase(void) { return 0; }
