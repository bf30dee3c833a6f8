/* Looks names up by the C library's getaddrinfo: prints the first address of each, or why there is none. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    for (int at = 1; at < argc; at++) {
        struct addrinfo hints, *found;
        memset(&hints, 0, sizeof hints);
        hints.ai_socktype = SOCK_STREAM;
        int error = getaddrinfo(argv[at], NULL, &hints, &found);
        if (error != 0) {
            printf("%s error %d\n", argv[at], error);
            continue;
        }
        char text[INET6_ADDRSTRLEN];
        const void *address = found->ai_family == AF_INET
            ? (const void *)&((struct sockaddr_in *)found->ai_addr)->sin_addr
            : (const void *)&((struct sockaddr_in6 *)found->ai_addr)->sin6_addr;
        printf("%s %s\n", argv[at], inet_ntop(found->ai_family, address, text, sizeof text));
        freeaddrinfo(found);
    }
    return 0;
}
