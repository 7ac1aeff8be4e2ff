{{- /* CEL of configuration-policy.yaml. */ -}}

{{- /* The configuration in a ResourceClaim or a ResourceClaimTemplate. */ -}}
{{- define "neuron-dra.configOfClaim" -}}
(has(dyn(object.spec).spec) ? dyn(object.spec).spec : dyn(object.spec)).?devices.?config.orValue([])
{{- end -}}

{{- /* What is wrong with the known fields of an entry p of this kind: a text, or a text, the value and a text. */ -}}
{{- define "neuron-dra.fieldProblems" -}}
{{- range $index, $field := .fields }}
{{- if $index }} +
{{ end -}}
{{- $value := printf "p.%s" .name -}}
{{- $wrong := printf "[[dyn('field \"' + path + '%s\" is '), %s, dyn(': %%s')]] :" .name $value -}}
(!('{{ .name }}' in p) ? [{{ if .required }}[dyn('required field "' + path + '{{ .name }}" is missing')]{{ end }}] :
{{- if .numbers }}
type({{ $value }}) != int ? {{ printf $wrong .notWhole }}
!({{ $value }} in {{ .numbers | toJson }}) ? {{ printf $wrong .otherNumber }} [])
{{- else }}
{{ $value }} == null ? [] :
type({{ $value }}) != string ? {{ printf $wrong .notText }}
{{ $value }}.size() < {{ .shortest }} ? {{ printf $wrong .tooShort }}
{{ $value }}.size() > {{ .longest }} ? {{ printf $wrong .tooLong }} [])
{{- end }}
{{- end }}
{{- end -}}
