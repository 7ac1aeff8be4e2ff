// Prints the health of an object as Argo CD and as Flux compute it: Argo CD runs a Lua script of the user, Flux uses kstatus.
//
//	gitops SCRIPT.lua < object.json
//
// Argo CD uses the same interpreter and gives the script the object as `obj` (argoproj/argo-cd, util/lua).
package main

import (
	"encoding/json"
	"io"
	"log"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
)

func main() {
	script, err := os.ReadFile(os.Args[1])
	check(err)
	text, err := io.ReadAll(os.Stdin)
	check(err)
	var object map[string]any
	check(json.Unmarshal(text, &object))
	argo, message := argoHealth(string(script), object)
	decoded := &unstructured.Unstructured{} // as Flux decodes it: whole numbers are not floating-point numbers
	check(decoded.UnmarshalJSON(text))
	found, err := status.Compute(decoded)
	check(err)
	check(json.NewEncoder(os.Stdout).Encode(map[string]string{
		"argo": argo, "message": message, "flux": found.Status.String(),
	}))
}

func argoHealth(script string, object map[string]any) (string, string) {
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", luajson.DecodeValue(state, object))
	check(state.DoString(script))
	table := state.Get(-1).(*lua.LTable)
	return table.RawGetString("status").String(), lua.LVAsString(table.RawGetString("message"))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
