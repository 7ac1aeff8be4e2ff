// Argo CD's application controller and repository server; the latter has the Redis with it that both keep results in.
//
//	argocd application-controller|repo-server [FLAG...]
//
// Argo CD's own program has its other servers and its command line too, which take many minutes to compile.
package main

import (
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	"github.com/spf13/cobra"
)

const redis = "127.0.0.1:6379"

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: argocd application-controller|repo-server [FLAG...]")
	}
	var command *cobra.Command
	switch os.Args[1] {
	case "application-controller":
		command = controller.NewCommand()
	case "repo-server":
		if err := miniredis.NewMiniRedis().StartAddr(redis); err != nil {
			log.Fatal(err)
		}
		command = reposerver.NewCommand()
	default:
		log.Fatalf("unknown program %s", os.Args[1])
	}
	command.SetArgs(append(os.Args[2:], "--redis="+redis))
	if err := command.Execute(); err != nil {
		os.Exit(1)
	}
}
