// Hides the subgroups of Vulkan devices: a libvulkan.so.1 in front of the real one. The attention of
// onnxruntime-webgpu 1.27 reads 8 lanes of a subgroup, SwiftShader's have 4, and without subgroups
// it takes the path that it takes on NVIDIA's and Apple's devices.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUBGROUP_PROPERTIES = 1000094000, VULKAN_1_1_PROPERTIES = 50, BYTES_OF_IDS = 48 };

typedef void (*Function)(void);
typedef Function (*GetFunction)(void *instance, const char *name);
typedef struct Structure {
  int32_t type;
  struct Structure *next;
} Structure;
typedef struct Subgroups {
  uint32_t size, stages, operations, quad_operations;
} Subgroups;
typedef void (*GetProperties)(void *device, Structure *properties);

static GetFunction get_function;
static GetProperties get_properties;

static void get_properties_without_subgroups(void *device, Structure *properties) {
  get_properties(device, properties);
  for (Structure *one = properties; one; one = one->next) {
    char *fields = (char *)(one + 1);
    if (one->type == SUBGROUP_PROPERTIES) ((Subgroups *)fields)->stages = 0;
    if (one->type == VULKAN_1_1_PROPERTIES) ((Subgroups *)(fields + BYTES_OF_IDS))->stages = 0;
  }
}

Function vkGetInstanceProcAddr(void *instance, const char *name) {
  if (!get_function) {
    void *loader = dlopen(getenv("VULKAN_LOADER"), RTLD_NOW | RTLD_LOCAL);
    if (!loader) abort();
    get_function = (GetFunction)dlsym(loader, "vkGetInstanceProcAddr");
  }
  Function found = get_function(instance, name);
  if (found && !strncmp(name, "vkGetPhysicalDeviceProperties2", 30)) {
    get_properties = (GetProperties)found;
    return (Function)get_properties_without_subgroups;
  }
  return found;
}
