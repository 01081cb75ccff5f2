// What runs in the containers of the tests: says how it found itself, and waits for its end.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	fmt.Println("oom_score_adj", strings.TrimSpace(string(score)), err)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
